"""`python -m inlay.connect.mooncake [-m MODULE | SCRIPT] [ARG...]`: run it with `mooncake` here."""

import runpy
import sys
from pathlib import Path

from inlay.connect.mooncake.activation import SHIM, activate

USAGE = """usage: python -m inlay.connect.mooncake SCRIPT [ARG...]
       python -m inlay.connect.mooncake -m MODULE [ARG...]
       python -m inlay.connect.mooncake --shim

Runs a script, or a module, with `import mooncake` served by Inlay, in processes that it starts,
too. --shim prints the directory to put on PYTHONPATH, or to `pip install`, for permanent use.
"""


def main(argv: list[str]) -> None:
    """Run what the arguments name, as `python` would."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        raise SystemExit(0 if argv else 2)
    if argv[0] == "--shim":
        print(SHIM)
        return
    activate()
    if argv[0] == "-m":
        if len(argv) < 2:
            raise SystemExit("-m needs the name of a module")
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    if not Path(argv[0]).exists():
        raise SystemExit(f"there is no script {argv[0]}")
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).resolve().parent))
    runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
