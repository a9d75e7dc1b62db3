"""`kv_transfer_params` that come with requests: what is followed, and what never may do harm."""

import itertools
import logging

import pytest

from inlay.connect.vllm.remote_prompt import RemotePrompt
from inlay.core.errors import ArgumentError
from tests.support.deployments import wait_until
from tests.unit.connect.vllm.engines import BLOCK, Instance, planned, request

PROMPT = list(range(100, 100 + 3 * BLOCK + 1))
GOOD = {
    "do_remote_prefill": True,
    "remote_addresses": ["127.0.0.1:1"],
    "remote_block_ids": [5, 2, 7, 1],
    "remote_num_tokens": len(PROMPT),
    "remote_request_id": "there",
}
# Nobody listens at port 1, and no name is looked up: each of these ends soon.
CANNOT_BE = {
    "remote_addresses": [
        None, 5, "127.0.0.1:1", {}, {"a": 1}, [], [None], [5], [["127.0.0.1:1"]], ["x"] * 2,
        ["127.0.0.1:1"] * 100_000, ["a" * 5000], ["\ud800"], True, float("nan"),
    ],
    "remote_block_ids": [
        None, 5, "5", {}, [None], ["5"], [-1], [2**31], [2**70], [1.5], [True], [[5], [2]],
        [[[5]]], [[-1, 2, 3, 4]], {"0": 1},
    ],
    "remote_num_tokens": ["4", -1, 1.5, True, [3], {}, 2**80, float("inf")],
    "remote_request_id": [5, ["a"], {"a": 1}, "\ud800", "a" * 5000, True],
}  # fmt: skip
MAY_BE = {
    "remote_addresses": [["nowhere"], [""], [":"], ["127.0.0.1"], ["127.0.0.1:99999"],
                         ["[::1]:x"], ["a\0b:1"]],
    "remote_block_ids": [[], [5], [[5, 2, 7, 1]], [10**9] * 4, [5] * 4, list(range(10**6))],
    "remote_num_tokens": [None, 0, 1, 10**9],
    "remote_request_id": [None, "", "nobody's"],
}  # fmt: skip


def each(values):
    return [(name, value) for name, some in values.items() for value in some]


def read(params):
    return RemotePrompt.read(params, ranks=1, prompt_tokens=len(PROMPT), block_tokens=BLOCK)


@pytest.fixture(scope="module")
def instance():
    made = Instance()
    yield made
    made.close()


NAMES = map(str, itertools.count())


def test_what_is_right():
    assert read(GOOD) == RemotePrompt(["127.0.0.1:1"], [5, 2, 7, 1], len(PROMPT), "there")
    assert read(GOOD | {"remote_block_ids": [[5, 2, 7, 1]]}) == read(GOOD)
    assert read(GOOD | {"remote_block_ids": [5, 2, 7, 1, 9, 9]}) == read(GOOD)
    assert read(GOOD | {"remote_num_tokens": None}) == read(GOOD)


@pytest.mark.parametrize(("blocks", "known", "tokens"), [
    ([5, 2], 13, 2 * BLOCK), ([5, 2], 5, 5), ([], 13, 0), ([5, 2, 7, 1], 10**9, 13),
])  # fmt: skip
def test_no_more_tokens_than_blocks_hold(blocks, known, tokens):
    assert read(GOOD | {"remote_block_ids": blocks, "remote_num_tokens": known}).tokens == tokens


@pytest.mark.parametrize(("name", "value"), each(CANNOT_BE))
def test_what_cannot_be_is_refused_in_a_line(name, value):
    with pytest.raises(ArgumentError, match=name) as refused:
        read(GOOD | {name: value})
    assert len(str(refused.value)) < 200 and str(refused.value).isascii()


@pytest.mark.parametrize("params", ["true", 5, ["do_remote_prefill"], True, 1.5, [{}]])
def test_no_object(params):
    with pytest.raises(ArgumentError, match="must be an object"):
        read(params)


def serve(instance, params):
    """As vLLM does with a request: how many tokens it was told of, and the blocks that were lost.

    Whatever it says, nothing raises, and its own prompt is there to be computed.
    """
    name = next(NAMES)
    asked = request(name, PROMPT)
    asked.kv_transfer_params = params
    instance.blocks[name] = [3, 0, 6, 4]
    tokens, loads = instance.scheduling.matched(asked, 0)
    assert 0 <= tokens <= len(PROMPT) and loads == (tokens > 0)
    instance.scheduling.allocated(asked, instance.blocks[name], tokens)
    instance.run(instance.scheduling.step(planned()))
    lost = set()
    if loads:
        assert wait_until(lambda: instance.working.finished(())[1], 30, "an answer") == {name}
        lost = instance.working.failed_blocks()
        instance.scheduling.lost(lost)
    instance.run(instance.scheduling.step(planned(**{name: (0, len(PROMPT))})))
    assert instance.scheduling.finished(asked, instance.blocks[name]) == (False, None)
    return tokens, lost


@pytest.mark.parametrize(("name", "value"), each(CANNOT_BE))
def test_a_request_with_it_is_computed(instance, caplog, name, value):
    before = instance.scheduling.refused
    with caplog.at_level(logging.WARNING):
        assert serve(instance, GOOD | {name: value}) == (0, set())
    assert instance.scheduling.refused == before + 1
    assert "its prompt is computed here: kv_transfer_params: " in caplog.text


@pytest.mark.parametrize("params", ["true", 5, ["do_remote_prefill"], {"do_remote_prefill": "x"}])
def test_a_request_with_no_object_is_computed(instance, params):
    before = instance.scheduling.refused
    assert serve(instance, params) == (0, set())
    assert instance.scheduling.refused == before + 1


@pytest.mark.parametrize(("name", "value"), each(MAY_BE))
def test_what_nobody_has_is_lost_and_computed(instance, name, value):
    before = instance.scheduling.refused
    tokens, lost = serve(instance, GOOD | {name: value})
    assert instance.scheduling.refused == before
    assert len(lost) == -(-tokens // BLOCK)


def test_a_request_that_is_cancelled(instance):
    for value in CANNOT_BE["remote_addresses"]:
        asked = request(next(NAMES), PROMPT)
        asked.kv_transfer_params = GOOD | {"remote_addresses": value}
        instance.scheduling.matched(asked, 0)
        assert instance.scheduling.finished(asked, []) == (False, None)
    assert instance.scheduling.step(planned()).fetches == []


def test_blocks_that_are_not_there(instance, caplog):
    """The other instance lives, but has no such blocks."""
    other = Instance()
    try:
        address = other.working.peers.address
        params = GOOD | {"remote_addresses": [address], "remote_block_ids": [8, 2**31 - 1, 5, 5]}
        assert serve(instance, params) == (len(PROMPT), {3, 0, 6, 4})
        assert "its prompt is computed here" in caplog.text
    finally:
        other.close()
