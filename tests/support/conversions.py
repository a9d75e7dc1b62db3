"""Conversions in processes of their own: killed at random, watched for their memory."""

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from inlay.models.conversion.staging import STAGING

# Notes every piece as soon as it is written, so that a kill finds some of them done.
_EAGER = """
import sys
from pathlib import Path
from inlay.models.conversion import work
from inlay.models.conversion.convert import convert
work._FLUSH_S = 0.0
status = Path("/proc/self/status").read_text()
print(int(status.partition("RssAnon:")[2].split()[0]) * 1024, flush=True)
convert(Path(sys.argv[1]), Path(sys.argv[2]), to=sys.argv[3], threads=int(sys.argv[4]), say=print)
"""


def eager_conversion(
    source: Path, target: Path, to: str = "packed", threads: int = 2
) -> "subprocess.Popen[str]":
    """Start a conversion that flushes after every piece; its first line is its memory before."""
    command = [sys.executable, "-c", _EAGER, str(source), str(target), to, str(threads)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def noted_pieces(target: Path) -> int:
    """How many pieces the journal of a conversion tells of; 0 without one."""
    try:
        lines = (target / STAGING / ".journal").read_text().splitlines()
    except FileNotFoundError:
        return 0
    return sum(len(json.loads(line).get("pieces", {})) for line in lines if line.endswith("}"))


def kill_at(
    process: "subprocess.Popen[str]", target: Path, pieces: int, draw: random.Random
) -> None:
    """Kill when so many pieces are noted, and a random moment later."""
    while process.poll() is None and noted_pieces(target) < pieces:
        time.sleep(0.001)
    time.sleep(draw.uniform(0, 0.005))
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def content_of(directory: Path) -> dict[str, str]:
    """Digests of all files by name; a directory in it is an error."""
    found = {}
    for file in sorted(directory.iterdir()):
        with file.open("rb") as stream:
            found[file.name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that is of no file; 0 when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    lines = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0
