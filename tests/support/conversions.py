"""Conversions in processes of their own: killed in the middle, watched for their memory."""

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

from inlay.models.conversion.staging import STAGING

# Notes every piece as soon as it is written, so that an end finds some of them done.
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

# Kills itself while it notes a piece: so many are noted, and of the next line some bytes are there.
_KILLED = """
import json, os, signal, sys
from inlay.models.conversion.journal import Journal
noted, torn = int(sys.argv[5]), int(sys.argv[6])
add = Journal.add
def killed(journal, pieces):
    left = noted - len(journal.done)
    if len(pieces) <= left:
        return add(journal, pieces)
    add(journal, dict(list(pieces.items())[:left]))
    rest = {str(number): digest for number, digest in list(pieces.items())[left:]}
    os.write(journal._fd, json.dumps({"pieces": rest}).encode()[:torn])
    os.kill(os.getpid(), signal.SIGKILL)
Journal.add = killed
"""


def eager_conversion(
    source: Path, target: Path, to: str = "packed", threads: int = 2
) -> "subprocess.Popen[str]":
    """Start a conversion that flushes after every piece; its first line is its memory before."""
    return _python(_EAGER, source, target, to, threads)


def killed_conversion(
    source: Path, target: Path, to: str, threads: int, *, noted: int, torn: int
) -> None:
    """Convert until a kill in the middle.

    Args:
        noted: pieces that the journal tells of then, of this conversion and of those before it;
            fewer than there are.
        torn: bytes of a line about more pieces that follow them, whose content is written.
    """
    process = _python(_KILLED + _EAGER, source, target, to, threads, noted, torn)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, said


def _python(code: str, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def noted_pieces(target: Path) -> int:
    """How many pieces the journal of a conversion tells of; 0 without one."""
    try:
        lines = (target / STAGING / ".journal").read_text().split("\n")[:-1]
    except FileNotFoundError:
        return 0
    return sum(len(json.loads(line).get("pieces", {})) for line in lines)


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
