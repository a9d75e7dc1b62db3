"""Processes that move bytes over one network card share it by their weights."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.netns import ShapedLinks

pytestmark = pytest.mark.netns

MBIT = 200  # so slow that a busy machine fills it; `transfer/fairness` has a fast one
RATE = MBIT * 1e6 / 8 * 0.96  # of payload
SETTLE_S, MEASURE_S, WINDOW_S = 2.0, 3.0, 0.5


class Card:
    """A card on the left that several processes use, and a target on the right."""

    def __init__(self, links: ShapedLinks) -> None:
        self.links = links
        target = self._start("right", "target", "0.0.0.0:0", "tcp")
        port = self._line(target).split(":")[1]
        self._address = f"{links[0].right}:{port}"

    def _start(self, side: str, module: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", f"tests.integration.transfer.{module}", *arguments]
        return self.links.start(
            side,  # type: ignore[arg-type]
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @staticmethod
    def _line(process: "subprocess.Popen[str]") -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def mover(self, how: str, traffic_class: str) -> "subprocess.Popen[str]":
        process = self._start("left", "sender", self._address, how, traffic_class)
        assert self._line(process) == "ready"
        return process

    def moved(self, process: "subprocess.Popen[str]") -> list[tuple[float, int]]:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        moved: list[tuple[float, int]] = json.loads(self._line(process))
        return moved


def rate(moved: list[tuple[float, int]], begin: float, end: float) -> float:
    """Bytes per second."""
    return sum(count for at, count in moved if begin <= at < end) / (end - begin)


def usual_share(moved: list[list[tuple[float, int]]], begin: float) -> float:
    """The first one's of two, in the median of half seconds: while a busy machine lets it wait, the
    other one has the whole card.
    """
    shares = []
    for window in range(round(MEASURE_S / WINDOW_S)):
        start = begin + window * WINDOW_S
        first, second = (rate(one, start, start + WINDOW_S) for one in moved)
        shares.append(first / (first + second))
    print(shares)
    return statistics.median(shares)


@pytest.fixture
def card() -> Iterator[Card]:
    with ShapedLinks([MBIT]) as links:
        yield Card(links)


@pytest.mark.parametrize(
    ("how", "other", "part"), [("write", "background", 8 / 9), ("read", "interactive", 1 / 2)]
)
def test_shares_follow_weights(card: Card, how: str, other: str, part: float) -> None:
    movers = [card.mover(how, "interactive"), card.mover(how, other)]
    time.sleep(SETTLE_S)
    begin = time.monotonic()
    time.sleep(MEASURE_S)
    moved = [card.moved(mover) for mover in movers]
    assert sum(rate(one, begin, begin + MEASURE_S) for one in moved) > 0.85 * RATE
    share = usual_share(moved, begin)
    assert share == pytest.approx(part, rel=0.1)
    assert 1 - share == pytest.approx(1 - part, rel=0.1)


def test_share_of_a_killed_process_returns(card: Card) -> None:
    heavy, light = card.mover("write", "interactive"), card.mover("write", "background")
    time.sleep(SETTLE_S)
    heavy.kill()
    killed = time.monotonic()
    time.sleep(1.0)
    moved = card.moved(light)
    assert rate(moved, killed - 1, killed) < 0.3 * RATE
    assert rate(moved, killed + 0.2, killed + 0.7) > 0.9 * RATE
    # The line that it left does not hold back the next either.
    again = card.mover("write", "interactive")
    time.sleep(SETTLE_S)
    begin = time.monotonic()
    time.sleep(MEASURE_S)
    share = usual_share([card.moved(mover) for mover in (again, light)], begin)
    assert share == pytest.approx(8 / 9, rel=0.1)
