"""A plugin for pytest that says how much processor time each test takes.

    pytest -p tests.support.costs --costs FILE

The file has a line for each test, in their order: processor seconds of this process and of those
that it started and that have ended, seconds, and the test, apart by tabs. What a fixture of a
module or a session costs counts for the test that came first or last. The first line is the
collection.
"""

import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", type=Path, metavar="FILE", help="write what each test costs")


def pytest_configure(config: pytest.Config) -> None:
    if file := config.getoption("--costs"):
        config.pluginmanager.register(_Costs(file.open("w", buffering=1)))


class _Costs:
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._begun = 0.0, time.monotonic()

    def _write(self, what: str) -> None:
        now = _processor_s(), time.monotonic()
        processor_s, seconds = now[0] - self._begun[0], now[1] - self._begun[1]
        self._file.write(f"{processor_s:.3f}\t{seconds:.3f}\t{what}\n")
        self._begun = now

    def pytest_collection_finish(self) -> None:
        self._write("collection")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        result = yield
        self._write(item.nodeid)
        return result

    def pytest_unconfigure(self) -> None:
        self._file.close()


def _processor_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
