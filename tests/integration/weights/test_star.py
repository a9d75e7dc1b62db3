"""Machines at a switch, each by one link: what the publisher sends, and peers that are gone."""

import contextlib
import functools
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from benchmarks.case import CaseError
from benchmarks.connect.weights import PORT, Process, together
from benchmarks.connect.weights_side import random_tensors
from tests.support.star import ShapedStar, star_problem

MBIT, PEERS = 400, 3
SIZE = 16 << 20

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(star_problem() is not None, reason=f"no star: {star_problem()}"),
]


class Star:
    """A publisher that offers version 0, and peers."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        self.net = stack.enter_context(ShapedStar(PEERS + 1, MBIT))
        self.publisher, *self.peers = (
            Process(stack, f"{self.net.address(n)}:{PORT}", functools.partial(self.net.start, n))
            for n in range(PEERS + 1)
        )
        self.publisher.tell("publish", version="0", directory=str(directory))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("checkpoint")
    save_file(random_tensors(SIZE), made / "model.safetensors")
    return made


@pytest.fixture
def star(directory: Path) -> Iterator[Star]:
    with ExitStack() as stack:
        yield Star(stack, directory)


def test_the_publisher_sends_little_more_than_one_copy(star: Star) -> None:
    before = star.net.bytes_sent(0)
    _, answers = together(star.peers, "0", star.publisher.address)
    assert star.net.bytes_sent(0) - before < 2 * SIZE
    taken: dict[str, Any]
    for answer in answers:
        taken = answer["taken"]
        assert sum(taken.values()) == SIZE and len(taken) > 1


def test_a_machine_that_is_killed_stops_nobody(star: Star) -> None:
    lost = star.peers.pop()
    pulling = threading.Thread(target=pull_in_vain, args=(lost, star.publisher.address))
    pulling.start()
    before = star.net.bytes_sent(PEERS)
    killer = threading.Thread(target=kill_when, args=(star, before, lost))
    killer.start()
    _, answers = together(star.peers, "0", star.publisher.address)
    assert all(sum(answer["taken"].values()) == SIZE for answer in answers)
    for thread in (killer, pulling):
        thread.join()


def kill_when(star: Star, before: int, process: Process) -> None:
    """Others have some of it from there; more would come."""
    end = time.monotonic() + 30
    while star.net.bytes_sent(PEERS) - before < SIZE // 8 and time.monotonic() < end:
        time.sleep(0.005)
    process.kill()


def pull_in_vain(process: Process, address: str) -> None:
    with contextlib.suppress(CaseError):
        process.tell("pull", version="0", publishers=[address])
