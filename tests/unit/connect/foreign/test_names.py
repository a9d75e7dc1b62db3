"""The engine's blocks under our names, against the chain of our own over whole prompts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.connect.foreign.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from inlay.connect.foreign.names import BlockNames
from inlay.core.block_hash import DIGEST_BYTES, chain


def key_of(salt, adapter):
    return None if adapter == "unknown" else f"{salt}/{adapter}".encode()


class Engine:
    """An engine that names blocks by position and content, and says what it does."""

    def __init__(self, block_tokens):
        self.block_tokens = block_tokens

    def names(self, tokens):
        """Of all whole blocks."""
        size = self.block_tokens
        return [hash(tuple(tokens[:end])) for end in range(size, len(tokens) + 1, size)]

    def stored(self, tokens, first=0, **fields):
        size, names = self.block_tokens, self.names(tokens)
        return BlockStored(
            block_hashes=names[first:],
            parent_block_hash=names[first - 1] if first else None,
            token_ids=list(tokens[first * size : len(names) * size]),
            block_size=size,
            **fields,
        )


def held(names):
    """What is there, after the changes and as a whole: they have to agree."""
    return set(names.digests())


class Follower:
    """What a dispatcher knows by the changes alone."""

    def __init__(self, names):
        self.names, self.held = names, set()

    def check(self):
        for change in self.names.take_changes():
            for start in range(0, len(change.digests), DIGEST_BYTES):
                digest = change.digests[start : start + DIGEST_BYTES]
                assert (digest not in self.held) == change.stored
                (self.held.add if change.stored else self.held.remove)(digest)
        assert self.held == held(self.names)
        assert len(self.held) == self.names.num_held


def tokens(count, seed=1):
    draw = random.Random(seed)
    return [draw.randrange(100_000) for _ in range(count)]


@pytest.mark.parametrize("theirs", [1, 16, 24, 32, 128])
@pytest.mark.parametrize("ours", [16, 32])
def test_whole_blocks_of_ours_are_named_as_we_do(theirs, ours):
    names, engine, prompt = BlockNames(key_of, ours), Engine(theirs), tokens(300)
    names.apply([engine.stored(prompt)])
    there = 300 // theirs * theirs
    assert names.digests() == chain(b"/", prompt[:there], ours)
    assert names.match(chain(b"/", prompt, ours)) == there // ours


@pytest.mark.parametrize("theirs", [1, 16, 24, 32, 128])
def test_a_block_is_there_while_all_that_it_lies_in_are(theirs):
    ours = 32
    names, engine, prompt = BlockNames(key_of, ours), Engine(theirs), tokens(384)
    follower = Follower(names)
    for first in range(384 // theirs):  # one event for each block
        names.apply([engine.stored(prompt[: (first + 1) * theirs], first)])
    follower.check()
    whole = chain(b"/", prompt, ours)
    assert names.digests() == whole
    their_names = engine.names(prompt)
    gone = len(their_names) // 2
    names.apply([BlockRemoved([their_names[gone]])])
    follower.check()
    begin, end = gone * theirs, (gone + 1) * theirs
    left = [one for i, one in enumerate(whole) if (i + 1) * ours <= begin or i * ours >= end]
    assert names.digests() == left
    names.apply([engine.stored(prompt[:end], gone)])
    follower.check()
    assert names.digests() == whole


def test_salt_and_adapter_are_in_the_name():
    names, engine, prompt = BlockNames(key_of, 16), Engine(16), tokens(48)
    plain, salted, adapted, both = (
        chain(key, prompt, 16) for key in (b"/", b"pepper/", b"/poet", b"pepper/poet")
    )
    cases = [
        (plain, {}),
        (salted, {"extra_keys": [["pepper"], None, None]}),
        (salted, {"cache_salt": "pepper"}),
        (adapted, {"lora_name": "poet", "lora_id": 1, "extra_keys": [["poet"]] * 3}),
        (both, {"lora_name": "poet", "extra_keys": [["poet", "pepper"], ["poet"], ["poet"]]}),
        (plain, {"extra_keys": [None, None, None]}),
    ]
    for expected, fields in cases:
        names.lost(forget=True)
        names.apply([engine.stored(prompt, **fields)])
        assert names.digests() == expected, fields
    assert names.unnamed == 0


def test_what_tokens_do_not_name_is_not_counted():
    names, engine, prompt = BlockNames(key_of, 16), Engine(16), tokens(64)
    image = [None, [["picture", 3]], None, None]
    names.apply([engine.stored(prompt, extra_keys=image)])
    assert names.digests() == chain(b"/", prompt[:16], 16)
    assert names.unnamed == 3
    names.lost(forget=True)
    for fields in (
        {"lora_id": 3},  # of an older engine, which has no name for it
        {"lora_name": "unknown"},
        {"extra_keys": [["pepper", b"embeddings"], None, None, None]},
        {"medium": "STORAGE"},
        {"medium": "EXTERNAL"},
        {"locality": "REMOTE"},
        {"kv_cache_spec_sliding_window": 128},
    ):
        names.apply([engine.stored(prompt, **fields)])
        assert names.digests() == [], fields
    names.apply([engine.stored(prompt, 2)])  # its parent was never heard of
    assert names.digests() == []


def test_a_block_is_there_while_any_medium_has_it():
    names, engine, prompt = BlockNames(key_of, 16), Engine(16), tokens(32)
    follower = Follower(names)
    names.apply([engine.stored(prompt), engine.stored(prompt, medium="CPU")])
    names.apply([BlockRemoved(engine.names(prompt), "GPU")])
    follower.check()
    assert len(held(names)) == 2
    names.apply([BlockRemoved(engine.names(prompt), "CPU")])
    follower.check()
    assert not held(names)


def test_one_kind_of_attention_counts():
    names, engine, prompt = BlockNames(key_of, 16), Engine(16), tokens(32)
    names.apply([engine.stored(prompt, group_idx=1), engine.stored(prompt, group_idx=2)])
    names.apply([BlockRemoved(engine.names(prompt), group_idx=2)])
    assert len(held(names)) == 2
    names.apply([BlockRemoved(engine.names(prompt), group_idx=1)])
    assert not held(names)


@pytest.mark.parametrize("theirs", [24, 32])
def test_prompts_that_differ_within_a_block(theirs):
    """The same block of ours is part of a block of each prompt."""
    names, engine = BlockNames(key_of, 16), Engine(theirs)
    trunk = tokens(16)
    one, other = trunk + tokens(80, seed=1), trunk + tokens(80, seed=2)
    first = chain(b"/", trunk, 16)
    names.apply([engine.stored(one), engine.stored(other), BlockRemoved(engine.names(one))])
    assert names.match(chain(b"/", other, 16)) == 96 // theirs * theirs // 16
    assert names.match(chain(b"/", one, 16)) == 1
    names.apply([BlockRemoved(engine.names(other))])
    assert names.match(first) == 0 and names.num_held == 0
    names.apply([engine.stored(one)])
    assert names.match(first) == 1


def test_cleared_and_lost():
    names, engine, prompt = BlockNames(key_of, 16), Engine(16), tokens(64)
    follower = Follower(names)
    names.apply([engine.stored(prompt), AllBlocksCleared()])
    follower.check()
    assert not held(names)
    names.apply([engine.stored(prompt)])
    names.lost(forget=False)
    follower.check()
    assert not held(names)
    names.apply([engine.stored(prompt, 2)])  # its parent's name still means the same tokens
    follower.check()
    assert names.digests() == chain(b"/", prompt, 16)[2:]
    assert names.match(chain(b"/", prompt, 16)) == 0


def test_what_is_nowhere_is_forgotten_some_time():
    names, engine = BlockNames(key_of, 16), Engine(16)
    for seed in range(200):
        prompt = tokens(16 * 50, seed)
        names.apply([engine.stored(prompt), BlockRemoved(engine.names(prompt))])
    assert len(names._blocks) <= 4096 + 50
    assert names.digests() == []


@given(
    theirs=st.sampled_from([1, 8, 16, 24, 32]),
    ours=st.sampled_from([16, 32]),
    acts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 6)), max_size=40),
)
def test_histories(theirs, ours, acts):
    """Whatever an engine does, the changes add up, and no name is there without its tokens."""
    names, engine = BlockNames(key_of, ours), Engine(theirs)
    follower = Follower(names)
    trunk = tokens(96)
    prompts = [trunk[: 16 * branch] + tokens(96, seed=branch + 2) for branch in range(6)]
    here: set[int] = set()
    for act, which, much in acts:
        prompt = prompts[which][: much * 32]
        theirs_names = engine.names(prompt)
        if act == 0 and theirs_names:
            names.apply([engine.stored(prompt)])
            here |= set(theirs_names)
        elif act == 1 and theirs_names:
            names.apply([BlockRemoved(theirs_names[-much:])])
            here -= set(theirs_names[-much:])
        elif act == 2 and which == 0:
            names.apply([AllBlocksCleared()])
            here = set()
        elif act == 3 and which == 1:
            names.lost(forget=False)
            here = set()
        follower.check()
        expected = set()
        for prompt in prompts:
            theirs_names = engine.names(prompt)
            for index, name in enumerate(chain(b"/", prompt, ours)):
                lies_in = range(index * ours // theirs, -(-(index + 1) * ours // theirs))
                if lies_in.stop <= len(theirs_names) and all(
                    theirs_names[one] in here for one in lies_in
                ):
                    expected.add(name)
        assert held(names) == expected
