"""Cores for who asks and who answers. Where the system moves both at will, a round trip takes one
of two times, five apart, by whether the thread that is woken finds its core asleep.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


@contextlib.contextmanager
def asking_apart(drivers: Iterable[int]) -> Iterator[None]:
    """Keep who asks on the first of this process's cores, and who answers on the others.

    These processes, by their numbers, and this one ask; their children, who are no drivers, answer.
    With one core nothing is done. Afterwards this process may run anywhere again, the others stay.
    """
    before = os.sched_getaffinity(0)
    first, *others = sorted(before)
    if not others:
        yield
        return
    asking = {os.getpid(), *drivers}
    for process in _descendants(asking):
        _keep(process, others)
    for process in asking:
        _keep(process, [first])
    try:
        yield
    finally:
        _keep(os.getpid(), before)


def _keep(process: int, cores: Iterable[int]) -> None:
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(task.name), cores)


def _descendants(parents: set[int]) -> set[int]:
    parent_of = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                words = (folder / "stat").read_text().rpartition(")")[2].split()
                parent_of[int(folder.name)] = int(words[1])
    found = set(parents)
    while more := {one for one, its in parent_of.items() if its in found} - found:
        found |= more
    return found - parents
