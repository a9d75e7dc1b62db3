"""Instances whose pages all wait for each other: one of them gives way, and texts are the same."""

import time
from contextlib import contextmanager

import msgspec
import pytest

from inlay.core.instance_messages import KvLost
from tests.integration.engine.engines import request
from tests.integration.engine.test_exchange import alone, prompts, settle, token_ids

PROMPT_TOKENS = 200  # 13 pages
PAGES = 20  # one prompt, and not another
LONG_S = 60.0


class Two:
    """Two instances that do both, and what a dispatcher does between them."""

    def __init__(self, *engines):
        self.engines = engines
        self.decoding = {}
        self.outputs = {}
        self.given_up = []

    def decode(self, message, at):
        """An instance is to decode a prompt."""
        self.decoding[message.request_id] = at
        self.engines[at].add(msgspec.structs.replace(message, phase="decode"))

    def prefill(self, message, at):
        """An instance is to compute a prompt."""
        self.engines[at].add(msgspec.structs.replace(message, phase="prefill"))

    def step(self):
        for at, engine in enumerate(self.engines):
            if not engine.has_work:
                continue
            for output in engine.step():
                if self.decoding.get(output.request_id) == at:
                    self.outputs.setdefault(output.request_id, []).append(output)
            other = self.engines[1 - at]
            for message in engine.take_kv_messages():
                if isinstance(message, KvLost):
                    self.given_up.append(message.request_id)
                    other.cancel(message.request_id)
                else:
                    other.kv_target(message)

    def drain(self):
        end_s = time.monotonic() + LONG_S
        while any(engine.num_live for engine in self.engines):
            assert time.monotonic() < end_s, "all wait for each other"
            self.step()
            time.sleep(0.0005)


@pytest.fixture
def patient(monkeypatch):
    """A machine that stands still for a while is no reason to give way."""
    monkeypatch.setattr("inlay.engine.exchange._PATIENCE_S", LONG_S / 2)


@contextmanager
def two(loaded):
    options = {"exchange": "127.0.0.1:0", "pages": PAGES, "max_batch_tokens": 256}
    with loaded.engine(**options) as first, loaded.engine(**options) as second:
        yield Two(first, second)
        settle(first)
        settle(second)


def both_reserved(instances, messages):
    """Each has reserved its pages for a prompt that the other has none for."""
    for at, message in enumerate(messages):
        instances.decode(message, at)
    for at, message in enumerate(messages):
        instances.prefill(message, 1 - at)


def both_computed(instances, messages):
    """Each has computed a prompt for the other, which has no pages to reserve."""
    for at, message in enumerate(messages):
        instances.prefill(message, 1 - at)
    for _ in range(5):
        instances.step()
    for at, message in enumerate(messages):
        instances.decode(message, at)


def out_of_order(instances, messages):
    """One has computed the second prompt first, the other has reserved pages for the first."""
    first, second = messages
    instances.prefill(second, 0)
    for _ in range(5):
        instances.step()
    instances.prefill(first, 0)
    instances.decode(first, 1)
    instances.decode(second, 1)


@pytest.mark.parametrize("arrange", [both_reserved, both_computed, out_of_order])
def test_a_circle_is_broken(tiny, arrange):
    messages = [
        request(number, ids, max_tokens=8, ignore_eos=True, temperature=0.0)
        for number, ids in enumerate(prompts([PROMPT_TOKENS] * 2, seed=7))
    ]
    expected = alone(tiny, messages)
    with two(tiny) as instances:
        arrange(instances, messages)
        instances.drain()
    assert instances.given_up
    assert {key: token_ids(value) for key, value in instances.outputs.items()} == expected


def test_who_can_only_wait_sleeps(tiny, patient):
    """One has no page for the second prompt, since nobody says where the first one goes."""
    messages = [
        request(number, ids, max_tokens=8, ignore_eos=True, temperature=0.0)
        for number, ids in enumerate(prompts([PROMPT_TOKENS] * 2, seed=9))
    ]
    with two(tiny) as instances:
        for message in messages:
            instances.prefill(message, 0)
        for _ in range(5):
            instances.step()
        assert not instances.engines[0].has_work
        for message in messages:
            instances.decode(message, 1)
        instances.drain()
    assert len(instances.outputs) == 2 and not instances.given_up


def test_nobody_gives_way_while_prompts_come(tiny, patient):
    """More prompts than there is room for: each waits its turn, and is computed where it was to."""
    messages = [
        request(number, ids, max_tokens=8, ignore_eos=True, temperature=0.0)
        for number, ids in enumerate(prompts([PROMPT_TOKENS] * 6, seed=8))
    ]
    with two(tiny) as instances:
        for message in messages:
            instances.decode(message, 1)
            instances.prefill(message, 0)
        instances.drain()
    assert len(instances.outputs) == len(messages) and not instances.given_up
