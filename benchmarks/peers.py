"""Peers measured by scripts outside the project, named by `--peers DIR`.

Such a script prints one JSON object per line on standard output, with at least `case`, `median`
and `unit`, and ends with a status other than 0 when its environment is not installed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Where the scripts' setup builds the environment of each peer.
ENVIRONMENTS = Path(os.environ.get("INLAY_PEERS", Path.home() / ".cache" / "inlay-peers"))


def rows(folder: Path | None, script: str, *arguments: str, timeout_s: float = 600) -> list[Any]:
    """What one run of a peer's script measured; nothing if it is not there or cannot run.

    The caller leaves a peer without rows out of the record. A script that cannot run says why on
    standard error.
    """
    if folder is None or not (folder / script).is_file():
        return []
    command = [sys.executable, script, *arguments]
    result = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=timeout_s, check=False
    )
    if result.returncode:
        print(f"peer left out: {script} ended with status {result.returncode}", file=sys.stderr)
        return []
    found = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    return [row for row in found if "error" not in row]


def environment(folder: Path | None, name: str) -> Path | None:
    """The folder of a peer's environment; None without `--peers`, or if it is not built."""
    if folder is None:
        return None
    found = ENVIRONMENTS / name
    if not found.is_dir():
        print(f"peer left out: {found} is missing", file=sys.stderr)
        return None
    return found
