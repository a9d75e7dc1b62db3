"""What a whole record of a case needs, as its TOML file lists it, and whether that is here.

    needs = ["netns", "peers:mooncake", "gib:20"]

A run leaves out what is missing where it can, such as a peer; `refresh` does not replace a record
by one that lacks it.
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks import machine, peers
from benchmarks.kinds import CPU_KINDS, kind_of
from tests.support.netns import netns_problem

GIB = 1 << 30


def _gpu(_: str, folder: Path | None) -> str | None:
    return None if machine.gpus() else "no CUDA device, or no PyTorch for it"


def _kind(name: str, folder: Path | None) -> str | None:
    here = kind_of(machine.machine(), on_gpu=False)
    return None if here == name else f"a processor of kind {name}; this one is {here}"


def _netns(_: str, folder: Path | None) -> str | None:
    problem = netns_problem()
    return problem and f"shaped network links: {problem}"


def _peers(name: str, folder: Path | None) -> str | None:
    if folder is None:
        return f"the peer {name}: --peers DIR is not given"
    if not (home := peers.ENVIRONMENTS / name).is_dir():
        return f"the peer {name}: its environment {home} is not built"
    return None


def _package(name: str, folder: Path | None) -> str | None:
    return None if importlib.util.find_spec(name) else f"the Python package {name}"


def _program(name: str, folder: Path | None) -> str | None:
    return None if shutil.which(name) else f"the program {name}"


def _file(name: str, folder: Path | None) -> str | None:
    return None if (machine.ROOT / name).exists() else f"the file {name}"


def _gib(size: str, folder: Path | None) -> str | None:
    free = psutil.virtual_memory().available / GIB
    return None if free >= float(size) else f"{size} GiB of free memory; there are {free:.1f}"


def _disk_gib(size: str, folder: Path | None) -> str | None:
    place = tempfile.gettempdir()
    free = shutil.disk_usage(place).free / GIB
    if free >= float(size):
        return None
    return f"{size} GiB of disk in {place} (TMPDIR names another one); there are {free:.1f}"


# What is missing for a need, given its value and `--peers`.
FLAGS: dict[str, Callable[[str, Path | None], str | None]] = {"gpu": _gpu, "netns": _netns}
VALUES: dict[str, Callable[[str, Path | None], str | None]] = {
    "disk_gib": _disk_gib,
    "file": _file,
    "gib": _gib,
    "kind": _kind,
    "package": _package,
    "peers": _peers,
    "program": _program,
}
FORMS = ", ".join([*FLAGS, *(f"{name}:VALUE" for name in VALUES)])


def problem_of(need: str) -> str | None:
    """Why a word of `needs` cannot be read, or None."""
    name, colon, value = need.partition(":")
    known = FLAGS if not colon else VALUES
    if name not in known or (colon and not value):
        return f"needs names {need!r}, allowed: {FORMS}"
    if name in ("gib", "disk_gib") and not _is_number(value):
        return f"needs names {need!r}: the value is a number of GiB"
    if name == "kind" and value not in CPU_KINDS:
        return f"needs names {need!r}, kinds are: {', '.join(CPU_KINDS)}"
    return None


def missing(needs: tuple[str, ...], folder: Path | None) -> list[str]:
    """What is not here of it, each said for people.

    Args:
        needs: as a case lists them.
        folder: `--peers`.
    """
    reasons = []
    for need in needs:
        name, _, value = need.partition(":")
        if reason := (FLAGS | VALUES)[name](value, folder):
            reasons.append(reason)
    return reasons


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdigit()
