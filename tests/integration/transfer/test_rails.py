"""Several links to one peer, of different speed, that are cut and come back."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.transfer.target import SIZE
from tests.support.netns import ShapedLinks

pytestmark = pytest.mark.netns

MBITS = [1600, 800, 533, 400]


class Pair:
    """A target on the right, an initiator on the left."""

    def __init__(self, links: ShapedLinks, listen: str = "0.0.0.0:0", to: int = 0) -> None:
        """The initiator listens at `listen` and connects over link `to`."""
        self.links = links
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "text": True,
        }
        module = "tests.integration.transfer."
        self.target = links.start(
            "right", [sys.executable, "-m", module + "target", "0.0.0.0:0"], **options
        )
        port = self.target.stdout.readline().split(":")[1].strip()
        address = f"{links[to].right}:{port}"
        self.initiator = links.start(
            "left", [sys.executable, "-m", module + "rails_initiator", address, listen], **options
        )
        assert self.initiator.stdout.readline() == "ready\n"

    def begin(self, what: str, value: float) -> None:
        self.initiator.stdin.write(f"{what} {value}\n")
        self.initiator.stdin.flush()

    def tell_target(self, expression: str) -> Any:
        self.target.stdin.write(expression + "\n")
        self.target.stdin.flush()
        return json.loads(self.target.stdout.readline())

    def result(self) -> Any:
        return json.loads(self.initiator.stdout.readline())


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ShapedLinks(MBITS) as links:
        yield Pair(links)


def test_all_links_carry() -> None:
    # So slow that a busy machine fills them; `transfer/rails` has fast ones.
    mbits, total = [320, 160, 107, 80], SIZE
    with ShapedLinks(mbits) as links:
        pair = Pair(links)
        before = [link.bytes_sent("right") for link in links]
        pair.begin("rate", total)
        rate = pair.result()
        sent = [link.bytes_sent("right") - old for link, old in zip(links, before, strict=True)]
    assert rate > 0.8 * sum(mbits) * 1e6 / 8, (rate, sent)
    for bytes_sent, mbit in zip(sent, mbits, strict=True):
        assert bytes_sent > 0.6 * total * mbit / sum(mbits), (rate, sent)


@pytest.mark.parametrize("seed", [1, 2])
def test_links_are_cut_and_come_back(pair: Pair, seed: int) -> None:
    rng = random.Random(seed)
    pair.begin("work", 8)
    end = time.monotonic() + 7
    cut: list[int] = []
    while time.monotonic() < end:
        if cut and (len(cut) == 3 or rng.random() < 0.5):
            pair.links[cut.pop(rng.randrange(len(cut)))].restore()
        else:
            link = rng.choice([i for i in range(4) if i not in cut])
            pair.links[link].cut(silently=rng.random() < 0.3)
            cut.append(link)
        time.sleep(rng.uniform(0.05, 0.6))
    for link in cut:
        pair.links[link].restore()
    result = pair.result()
    assert result["errors"] == [] and result["wrong"] == 0
    assert result["moved"] > 100 << 20


def test_the_address_to_listen_at_binds_no_lane() -> None:
    with ShapedLinks([800, 400]) as links:
        pair = Pair(links, listen=f"{links[0].left}:0", to=1)
        pair.begin("work", 3)
        time.sleep(0.5)
        links[0].cut()
        time.sleep(1)
        before = links[1].bytes_sent("right")
        result = pair.result()
        assert result["errors"] == [] and result["wrong"] == 0
        assert links[1].bytes_sent("right") - before > 10 << 20


def test_a_machine_that_vanishes() -> None:
    with ShapedLinks([400]) as links:
        pair = Pair(links)
        pair.begin("work", 60)
        time.sleep(0.3)
        links[0].cut(silently=True)
        begin = time.monotonic()
        (error,) = pair.result()["errors"]
        assert error.startswith("PeerUnreachableError") and links[0].right in error
        assert 9 < time.monotonic() - begin < 14
