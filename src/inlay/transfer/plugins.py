"""Transports that other packages bring: who they are, and where their libraries lie.

A package names its transport in its metadata, under the entry point group `inlay.transports`. The
value is the path of a shared library (`native/include/inlay/transport.h`), or a function that
returns it. This module loads no library; engines do.
"""

import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points

GROUP = "inlay.transports"


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """A transport from another package.

    Attributes:
        name: of the transport, as `TransferEngine(transports=...)` takes it.
        library: the path of its shared library; empty where there is none.
        problem: why there is none.
    """

    name: str
    library: str = ""
    problem: str | None = None


def find_plugins(wanted: Collection[str] = ()) -> list[Plugin]:
    """Every transport that an installed package names, in the order of names.

    Args:
        wanted: only of these the package is imported, which is how its library is found; empty: of
            all. Others have a problem that says so.

    Cost: 3 to 10 ms for the first call of a process, which reads the metadata of all packages. What
    is installed later is found by the next process.
    """
    return [
        _ask(entry)
        if not wanted or entry.name in wanted
        else Plugin(name=entry.name, problem="not among the transports that were asked for")
        for entry in _entries(tuple(sys.path))
    ]


@lru_cache(maxsize=4)
def _entries(path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Where two packages have the same name, the first on the path has it."""
    by_name: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        by_name.setdefault(entry.name, entry)
    return tuple(by_name[name] for name in sorted(by_name))


def _ask(entry: EntryPoint) -> Plugin:
    """Whatever goes wrong in a package of others is its problem, and no error of the engine's."""
    try:
        value = entry.load()
        library = os.fspath(value() if callable(value) else value)
    except Exception as error:
        problem = f"its entry point {entry.value} fails: {type(error).__name__}: {error}"
        return Plugin(name=entry.name, problem=problem)
    if not isinstance(library, str) or not os.path.isabs(library):
        return Plugin(
            name=entry.name,
            problem=f"its entry point {entry.value} gives {library!r}, no absolute path",
        )
    return Plugin(name=entry.name, library=library)
