"""Blocks between two instances, through a store and directly; vLLM itself is not needed."""

import time

import pytest
import torch

from inlay.store import Store
from tests.unit.connect.vllm.engines import BLOCK, Instance, planned, request

PROMPT = list(range(100, 100 + 3 * BLOCK + 1))


class _Kept:
    """An embedded store that its users cannot close."""

    def __init__(self):
        self.store = Store.embedded(memory="4MiB")

    def __call__(self, master, **kwargs):
        return self

    def __getattr__(self, name):
        return getattr(self.store, name)

    def close(self):
        pass


@pytest.fixture
def store():
    kept = _Kept()
    yield kept
    kept.store.close()


@pytest.fixture
def make(store):
    made = []

    def make(connect=store, **settings):
        made.append(Instance(connect, **settings))
        return made[-1]

    yield make
    for instance in made:
        instance.close()


def until(condition):
    """Wait until something holds; its value."""
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        if found := condition():
            return found
        time.sleep(0.005)
    raise AssertionError("it did not come about")


def ask(instance, asked, computed=0):
    """As vLLM: again until the answer is known."""
    return until(lambda: (a := instance.scheduling.matched(asked, computed))[0] is not None and a)


def compute(instance, name="a", tokens=PROMPT, blocks=(5, 2, 7, 1), **changed):
    """A prompt that is computed here and saved."""
    asked = request(name, tokens, **changed)
    instance.blocks[name] = list(blocks)
    assert ask(instance, asked) == (0, False)
    instance.scheduling.allocated(asked, list(blocks), 0)
    instance.run(instance.scheduling.step(planned(**{name: (0, len(tokens))})))
    return asked


def received(instance, name):
    return until(lambda: name in instance.working.finished(())[1])


@pytest.mark.parametrize("layout", [(0, 1, 2, 3), (0, 2, 1, 3), (1, 0, 2, 3)])
def test_a_prompt_of_another_instance(make, store, layout):
    one, two = make(), make(layout=layout)
    compute(one)
    until(lambda: one.working.counts["saved"] == 3)
    asked = request("b", PROMPT)
    two.blocks["b"] = [3, 0, 6, 4]
    assert ask(two, asked) == (3 * BLOCK, True)
    two.scheduling.allocated(asked, two.blocks["b"], 3 * BLOCK)
    work = two.scheduling.step(planned())
    two.run(work)
    received(two, "b")
    assert two.working.failed_blocks() == set()
    for there, here in zip((5, 2, 7), (3, 0, 6), strict=True):
        assert torch.equal(one.page(there), two.page(here))
    # What came from there is not saved again; what is computed here is.
    asked.all_token_ids += range(3)
    two.run(two.scheduling.step(planned(b=(3 * BLOCK, BLOCK))))
    until(lambda: two.working.counts["saved"] == 1)


def test_blocks_that_vllm_has_itself_are_not_loaded(make, store):
    one, two = make(), make()
    compute(one)
    until(lambda: one.working.counts["saved"] == 3)
    asked = request("b", PROMPT)
    assert ask(two, asked, 2 * BLOCK) == (BLOCK, True)
    two.scheduling.allocated(asked, [3, 0, 6, 4], BLOCK)
    (load,) = two.scheduling.step(planned()).loads
    assert load.block_ids == [6] and len(load.digests) == 1
    assert ask(two, request("c", PROMPT), 3 * BLOCK) == (0, False)


def test_one_token_is_left_to_be_computed(make, store):
    one, two = make(), make()
    compute(one, tokens=PROMPT[: 3 * BLOCK])
    until(lambda: one.working.counts["saved"] == 3)
    assert ask(two, request("b", PROMPT[: 3 * BLOCK])) == (2 * BLOCK, True)


@pytest.mark.parametrize(
    "changed", [{"cache_salt": "other"}, {"mm_features": ["image"]}, {"prompt_embeds": object()}]
)
def test_what_tokens_do_not_say(make, store, changed):
    one, two = make(), make()
    compute(one)
    until(lambda: one.working.counts["saved"] == 3)
    asked = request("b", PROMPT)
    vars(asked).update(changed)
    assert ask(two, asked) == (0, False)


def test_lost_blocks_are_reported_and_saved_again(make, store):
    one, two = make(), make()
    compute(one)
    until(lambda: one.working.counts["saved"] == 3)
    asked = request("b", PROMPT)
    two.blocks["b"] = [3, 0, 6, 4]
    assert ask(two, asked) == (3 * BLOCK, True)
    store.remove_prefix(b"")
    two.scheduling.allocated(asked, two.blocks["b"], 3 * BLOCK)
    two.run(two.scheduling.step(planned()))
    received(two, "b")
    failed = two.working.failed_blocks()
    assert failed == {3, 0, 6}
    two.scheduling.lost(failed)
    two.run(two.scheduling.step(planned(b=(0, len(PROMPT)))))
    until(lambda: two.working.counts["saved"] == 3)


def test_what_finds_no_room_is_not_saved(make, store):
    one = make(staging="1KiB")  # two pages
    compute(one)
    until(lambda: one.working.counts["saved"] == 2)
    assert one.working.counts["not_saved"] == 1


def test_an_unreachable_store_is_done_without(make, store):
    instance = make(connect=None)
    assert instance.scheduling.matched(request("a", PROMPT), 0) == (0, False)

    def connect(master, **kwargs):
        return Store.connect("127.0.0.1:1", timeout_s=0.2)

    instance = make(connect=connect)
    assert ask(instance, request("a", PROMPT)) == (0, False)
    asked = compute(instance, "b")
    until(lambda: not instance.scheduling._store.usable)
    assert instance.scheduling.step(planned(b=(0, len(asked.all_token_ids)))).saves.block_ids == []


def fetched(one, two, changed=None, **kwargs):
    """One computes, the other fetches."""
    asked = request("p", PROMPT)
    asked.kv_transfer_params = {"do_remote_decode": True}
    kept, params = one.scheduling.finished(asked, [5, 2, 7, 1])
    assert kept
    one.run(one.scheduling.step(planned()))
    here = request("d", PROMPT)
    here.kv_transfer_params = params | (changed or {})
    return here, params


def test_a_prompt_is_fetched(make):
    one, two = make(connect=None), make(connect=None)
    here, _ = fetched(one, two)
    assert two.scheduling.matched(here, 0) == (len(PROMPT), True)
    two.scheduling.allocated(here, [0, 1, 2, 3], len(PROMPT))
    two.run(two.scheduling.step(planned()))
    received(two, "d")
    assert two.working.failed_blocks() == set()
    for there, block in zip((5, 2, 7, 1), (0, 1, 2, 3), strict=True):
        assert torch.equal(one.page(there), two.page(block))
    assert one.working.finished(()) == (set(), set())  # it has not ended yet, says vLLM
    until(lambda: one.working.finished({"p"})[0] == {"p"})


@pytest.mark.parametrize("more", [1, BLOCK - 1, BLOCK, 3 * BLOCK])
def test_a_prompt_goes_on_behind_what_is_fetched(make, more):
    """Nothing is taken for there that the other one has not computed."""
    one, two = make(connect=None), make(connect=None)
    before, params = fetched(one, two)
    assert params["remote_num_tokens"] == len(PROMPT)
    here = request("d", PROMPT + [7] * more)
    here.kv_transfer_params = before.kv_transfer_params
    assert two.scheduling.matched(here, 0) == (len(PROMPT), True)
    two.scheduling.allocated(here, list(range(7)), len(PROMPT))
    two.run(two.scheduling.step(planned()))
    received(two, "d")
    assert two.working.failed_blocks() == set()
    for there, block in zip((5, 2, 7, 1), range(4), strict=True):
        assert torch.equal(one.page(there), two.page(block))


@pytest.mark.parametrize("known", [None, "4", -1, 10**9])
def test_a_number_of_tokens_that_cannot_be(make, known):
    one, two = make(connect=None), make(connect=None)
    here, _ = fetched(one, two, {"remote_num_tokens": known})
    tokens, _ = two.scheduling.matched(here, 0)
    assert tokens in (0, len(PROMPT))


def test_the_other_instance_need_not_wait_for_who_is_gone(make):
    one, two = make(connect=None), make(connect=None)
    here, _ = fetched(one, two)
    two.scheduling.matched(here, 0)
    two.scheduling.finished(here, [])
    two.run(two.scheduling.step(planned()))
    until(lambda: one.working.finished({"p"})[0] == {"p"})


def test_nobody_comes(make, caplog):
    one, two = make(connect=None, hold_s=0.05), make(connect=None)
    fetched(one, two)
    until(lambda: one.working.finished({"p"})[0] == {"p"})
    assert one.working.counts["expired"] == 1 and "nobody came" in caplog.text


@pytest.mark.parametrize(
    ("changed", "tokens", "lost"),
    [
        ({"remote_addresses": ["127.0.0.1:1"]}, len(PROMPT), {0, 1, 2, 3}),
        ({"remote_block_ids": [5, 2]}, 2 * BLOCK, set()),
    ],
)
def test_what_cannot_be_fetched_is_computed(make, caplog, changed, tokens, lost):
    one, two = make(connect=None), make(connect=None)
    here, _ = fetched(one, two, changed)
    assert two.scheduling.matched(here, 0) == (tokens, True)
    two.scheduling.allocated(here, [0, 1, 2, 3], tokens)
    two.run(two.scheduling.step(planned()))
    received(two, "d")
    assert two.working.failed_blocks() == lost
    assert ("computed here" in caplog.text) == bool(lost)


def test_caches_of_other_layouts_are_refused(make, caplog):
    one, two = make(connect=None), make(connect=None, layout=(0, 2, 1, 3))
    here, _ = fetched(one, two)
    two.scheduling.matched(here, 0)
    two.scheduling.allocated(here, [0, 1, 2, 3], len(PROMPT))
    two.run(two.scheduling.step(planned()))
    received(two, "d")
    assert two.working.failed_blocks() == {0, 1, 2, 3} and "its cache has blocks" in caplog.text
    until(lambda: one.working.finished({"p"})[0] == {"p"})


def test_other_degrees_are_not_fetched_from(make):
    one, two = make(connect=None), make(connect=None)
    here, params = fetched(one, two)
    here.kv_transfer_params = params | {"remote_addresses": params["remote_addresses"] * 2}
    assert two.scheduling.matched(here, 0) == (0, False)
