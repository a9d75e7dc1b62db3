"""The `inlay` command, also run by `python -m inlay`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it quietly, also while its modules are imported."""
    try:
        from inlay.serve.cli import main as run_and_exit

        run_and_exit()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
