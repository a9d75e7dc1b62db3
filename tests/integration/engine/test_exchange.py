"""One instance computes prompts, another decodes: texts are those of one instance."""

import time
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from inlay.core.instance_messages import KvTarget
from inlay.core.messages import Structure
from tests.integration.engine.engines import request
from tests.integration.engine.pairs import Pair, prompts, settle, token_ids

PROMPT_SIZES = [2, 15, 16, 17, 18, 33, 48, 49, 200, 513, 700]


@contextmanager
def pair(loaded, **options):
    prefill_options = {**options, **options.pop("prefill", {})}
    options.pop("prefill", None)
    prefill_options.pop("prefill", None)
    with (
        loaded.engine(exchange="127.0.0.1:0", **prefill_options) as prefill,
        loaded.engine(exchange="127.0.0.1:0", **options) as decode,
    ):
        both = Pair(prefill, decode)
        yield both
        settle(prefill)
        settle(decode)


def alone(loaded, messages):
    with loaded.engine() as engine:
        for message in messages:
            engine.add(message)
        done = {}
        while engine.num_live:
            for output in engine.step():
                done.setdefault(output.request_id, []).append(output)
    return {key: token_ids(outputs) for key, outputs in done.items()}


def mixed():
    """Greedy and drawn, with choices, stops and grammars."""
    messages = []
    for number, ids in enumerate(prompts(PROMPT_SIZES)):
        more = [
            {"temperature": 0.0},
            {"temperature": 1.0, "seed": number},
            {"temperature": 0.8, "seed": number, "n": 3},
        ][number % 3]
        messages.append(request(number, ids, max_tokens=9, ignore_eos=True, **more))
    structure = Structure("regex", "[a-z]{3,8}")
    ids = prompts([100], seed=5)[0]
    messages.append(request("grammar", ids, max_tokens=12, seed=3, structure=structure))
    return messages


def test_texts_are_those_of_one_instance(tiny):
    messages = mixed()
    expected = alone(tiny, messages)
    with pair(tiny, prefill_chunk=64, max_batch_tokens=200) as both:
        for message in messages:
            both.add(message)
        outputs = both.drain()
    assert {key: token_ids(value) for key, value in outputs.items()} == expected
    assert sum(target.num_tokens > 0 for target in both.targets.values()) > 5


def test_blocks_that_are_there_are_not_sent(tiny):
    (ids,) = prompts([300])
    with pair(tiny) as both:
        both.add(request("first", ids, max_tokens=4, temperature=0.0))
        first = token_ids(both.drain()["first"])
        longer = [*ids, *prompts([64], seed=9)[0]]
        both.add(request("second", longer, max_tokens=4, temperature=0.0))
        second = both.drain()["second"]
        assert both.targets["second"].first_block == 300 // 16
        assert second[0].cached_tokens >= 288
        both.add(request("again", ids, max_tokens=4, temperature=0.0))
        assert token_ids(both.drain()["again"]) == first
        assert both.targets["again"].num_tokens == 0
    with tiny.engine() as engine:
        engine.add(request("second", longer, max_tokens=4, temperature=0.0))
        done = []
        while engine.num_live:
            done += engine.step()
    assert token_ids(second) == token_ids(done)


def test_a_prompt_that_does_not_come_is_computed(tiny):
    (ids,) = prompts([400])
    message = request("r", ids, max_tokens=6, temperature=0.0)
    expected = alone(tiny, [message])["r"]
    with pair(tiny) as both:
        both.deaf = True
        both.add(message)
        for _ in range(20):
            both.step()
        assert not both.outputs
        both.decode.kv_lost("r", "the prefill instance is gone")
        both.prefill.cancel("r")
        assert token_ids(both.drain()["r"]) == expected


def test_an_instance_says_that_it_waits_no_more(tiny, monkeypatch):
    monkeypatch.setattr("inlay.cache.stream_thread._COME_S", 0.05)
    (ids,) = prompts([400])
    message = request("r", ids, max_tokens=6, temperature=0.0)
    expected = alone(tiny, [message])["r"]
    with pair(tiny) as both:
        both.deaf = True
        both.add(message)
        while not both.outputs:
            both.step()
        (lost,) = both.given_up
        assert lost.request_id == "r" and "0.05 s" in lost.reason
        assert token_ids(both.drain()["r"]) == expected


def test_pages_that_cannot_be_granted(tiny):
    (ids,) = prompts([400])
    message = request("r", ids, max_tokens=6, temperature=0.0)
    expected = alone(tiny, [message])["r"]
    with pair(tiny, pages=50) as both:
        (own,) = both.decode._exchange._stream._ranks
        grant = own.grant(np.arange(50, dtype=np.int32))
        both.add(message)
        while not both.outputs:
            both.step()
        (lost,) = both.given_up
        assert lost.request_id == "r" and not both.targets
        assert token_ids(both.drain()["r"]) == expected
        assert own.revoke(grant)


def test_a_target_that_comes_late(tiny):
    (ids,) = prompts([400])
    message = request("r", ids, max_tokens=6, temperature=0.0)
    expected = alone(tiny, [message])["r"]
    with pair(tiny, prefill_chunk=64) as both:
        both.deaf = True
        both.add(message)
        while "r" not in both.targets:
            both.step()
        both.deaf = False
        both.prefill.kv_target(both.targets["r"])
        assert token_ids(both.drain()["r"]) == expected


@pytest.mark.parametrize("turns", range(5))
def test_stopped_as_its_target_comes(tiny, turns):
    """So many turns of the thread's event loop later."""
    with pair(tiny) as both:
        stream = both.prefill._exchange._stream
        outgoing = stream.begin("r", 4)
        sending, thread = stream._sent[outgoing].sending, stream._thread
        outgoing.aim(
            KvTarget(
                request_id="r", address=both.decode.exchange_address, segment="kv", grant=0,
                first_block=0, pages=bytes(4), num_tokens=4,
            )
        )  # fmt: skip

        def stop_after(left):
            if left:
                thread._loop.call_soon(stop_after, left - 1)
            else:
                thread._stop(sending)

        thread._call(lambda: (sending.aimed.set(), stop_after(turns)))
        end_s = time.monotonic() + 30
        while not stream.due:
            assert time.monotonic() < end_s, "it goes on"
        assert stream.poll() == ([outgoing], [])


@pytest.mark.parametrize("steps", [0, 1, 3, 6, 30])
def test_cancelled_anywhere(tiny, steps):
    with pair(tiny, prefill_chunk=64) as both:
        for number, ids in enumerate(prompts([400, 300])):
            both.add(request(number, ids, max_tokens=6, temperature=0.0))
        for _ in range(steps):
            both.step()
        both.decode.cancel("0")
        both.prefill.cancel("0")
        both.prefill.cancel("1")
        both.decode.kv_lost("1", "cancelled")
        both.drain()
        assert both.outputs["0"][-1].finished
        assert len(token_ids(both.outputs["1"])[0]) == 6


def test_little_room(tiny):
    """Pools that hold few prompts at a time: everything waits its turn, and texts are the same."""
    messages = [
        request(number, ids, max_tokens=20, ignore_eos=True, temperature=0.0)
        for number, ids in enumerate(prompts([200] * 8, seed=3))
    ]
    expected = alone(tiny, messages)
    with pair(tiny, pages=40, prefix=True, prefill_chunk=100, max_batch_tokens=128) as both:
        for message in messages:
            both.add(message)
        outputs = both.drain()
    assert {key: token_ids(value) for key, value in outputs.items()} == expected


@pytest.mark.parametrize("cut", [1, 4, 8])
def test_tokens_that_another_instance_produced(tiny, cut):
    """A request that goes on elsewhere has the same tokens, at one instance and divided."""
    messages = mixed()
    expected = alone(tiny, messages)
    begun = []
    for message in messages:
        choices = expected[message.request_id]
        short = [choices[i] for i in range(message.params.n)]
        produced = tuple(None if len(ids) <= cut else tuple(ids[:cut]) for ids in short)
        if any(p is not None for p in produced):
            begun.append(msgspec.structs.replace(message, produced=produced))
    rest = {
        m.request_id: {i: ids[cut:] for i, ids in expected[m.request_id].items() if len(ids) > cut}
        for m in begun
    }
    assert alone(tiny, begun) == rest
    with pair(tiny, prefill_chunk=64) as both:
        for message in begun:
            if message.params.n == 1:
                both.add(message)
            else:
                both.decode.add(message)
        outputs = both.drain()
    assert {key: token_ids(value) for key, value in outputs.items()} == rest
