"""Jobs of a `BlockStore` over a dictionary, which can fail as a store does."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from inlay.cache import BlockStore
from inlay.core.block_hash import ROOT, store_key
from inlay.core.errors import ArgumentError, KeyNotFound, StoreTimeout
from inlay.core.kv_format import gqa_format

FORMAT = gqa_format(layers=2, kv_heads=1, head_dim=4, dtype="float32", page_tokens=4)
DIGESTS = [bytes([number]) * 16 for number in range(6)]


class _Objects:
    """Bytes under keys."""

    node = "mine"

    def __init__(self):
        self.values = {}
        self.nodes = {}
        self.hints = []
        self.error = None
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.closed = False

    def _begin(self):
        assert self.may_go_on.wait(10)
        if self.error is not None:
            raise self.error

    def exists_many(self, keys):
        self._begin()
        return [key in self.values for key in keys]

    def get_into_many(self, keys, buffers):
        self._begin()
        results = []
        for key, buffer in zip(keys, buffers, strict=True):
            value = self.values.get(key)
            if value is None:
                results.append(None)
            elif len(value) > buffer.nbytes:
                results.append(ArgumentError(f"{key} does not fit"))
            else:
                buffer[: len(value)] = np.frombuffer(value, np.uint8)
                results.append(len(value))
        return results

    def put_many(self, keys, values, *, parents, recompute_us):
        self._begin()
        self.hints += zip(keys, parents, [recompute_us] * len(keys), strict=True)
        for key, value in zip(keys, values, strict=True):
            self.values.setdefault(key, value.tobytes())

    def stat(self, key):
        if key not in self.values:
            raise KeyNotFound(key)
        return SimpleNamespace(replicas=self.nodes.get(key, [("mine", "memory")]))

    def close(self):
        self.closed = True


@pytest.fixture
def objects():
    return _Objects()


@pytest.fixture
def pages():
    draw = np.random.default_rng(1)
    return draw.integers(0, 256, (8, FORMAT.page_bytes), np.uint8)


@pytest.fixture
def blocks(objects, pages):
    made = BlockStore(objects, kv_format=FORMAT, pages=pages)
    yield made
    made.close()


def _save(blocks, digests, page_ids):
    return blocks.save(digests, page_ids, [ROOT] * len(digests))


def _end(blocks, job):
    assert blocks.wait(10)
    assert blocks.finished.popleft() is job
    return job


def test_pages_go_and_come_back_whole(blocks, objects, pages):
    before = pages[:6].copy()
    _end(blocks, _save(blocks, DIGESTS[:3], [0, 1, 2]))
    assert sorted(objects.values) == [store_key(digest) for digest in DIGESTS[:3]]
    assert _end(blocks, blocks.find(DIGESTS)).found == 3
    pages[:] = 0
    job = _end(blocks, blocks.load([DIGESTS[2], DIGESTS[0]], [5, 7]))
    assert (job.good, job.tier, job.error) == ([True, True], "host", None)
    assert (pages[5] == before[2]).all() and (pages[7] == before[0]).all()
    assert not pages[[0, 1, 2, 3, 4, 6]].any(), "no other page is touched"


def test_the_store_is_told_what_blocks_are_worth(blocks, objects):
    _end(blocks, blocks.save(DIGESTS[1:3], [0, 1], [ROOT, DIGESTS[1]], 400))
    first, second = (store_key(digest) for digest in DIGESTS[1:3])
    assert objects.hints == [(first, None, 400), (second, first, 400)]


def test_only_the_leading_run_counts(blocks):
    _end(blocks, _save(blocks, [DIGESTS[0], DIGESTS[1], DIGESTS[3]], [0, 1, 3]))
    assert _end(blocks, blocks.find(DIGESTS)).found == 2
    assert _end(blocks, blocks.find(DIGESTS[2:])).found == 0


def test_what_is_missing_or_has_another_size_is_not_good(blocks, objects):
    _end(blocks, _save(blocks, DIGESTS[:4], [0, 1, 2, 3]))
    del objects.values[store_key(DIGESTS[1])]
    objects.values[store_key(DIGESTS[2])] = b"short"
    assert _end(blocks, blocks.load(DIGESTS[:4], [4, 5, 6, 7])).good == [True, False, False, True]
    objects.values[store_key(DIGESTS[2])] = bytes(FORMAT.page_bytes + 1)
    job = _end(blocks, blocks.load(DIGESTS[:4], [4, 5, 6, 7]))
    assert (job.good, job.error) == ([True, False, False, True], None)


def test_the_tier_is_that_of_the_nearest_copy(blocks, objects):
    _end(blocks, _save(blocks, DIGESTS[:1], [0]))
    for replicas, tier in (
        ([("other", "memory"), ("mine", "disk"), ("mine", "memory")], "host"),
        ([("other", "memory"), ("mine", "disk")], "disk"),
        ([("other", "memory"), ("other", "disk")], "store"),
    ):
        objects.nodes[store_key(DIGESTS[0])] = replicas
        assert _end(blocks, blocks.load(DIGESTS[:1], [1])).tier == tier


def test_errors_are_the_jobs_and_the_thread_goes_on(blocks, objects):
    objects.error = StoreTimeout("5 s are over")
    for job in (blocks.find(DIGESTS[:1]), _save(blocks, DIGESTS[:1], [0])):
        job.future.result(10)
    for _ in range(2):
        assert blocks.wait(10)
        assert isinstance(blocks.finished.popleft().error, StoreTimeout)
    objects.error = None
    assert _end(blocks, blocks.find(DIGESTS[:1])).error is None


def test_what_has_not_begun_can_be_taken_back(blocks, objects):
    _end(blocks, _save(blocks, DIGESTS[:2], [0, 1]))
    objects.may_go_on.clear()
    first, second = blocks.load(DIGESTS[:1], [4]), blocks.load(DIGESTS[1:2], [5])
    while not first.future.running():
        pass
    assert second.cancel()
    assert not first.cancel()
    objects.may_go_on.set()
    _end(blocks, first)
    assert not blocks.wait(0.05), "a job that was taken back never ends"


def test_closing_ends_what_is_under_way_and_closes_the_store(objects, pages):
    woken = threading.Event()
    blocks = BlockStore(objects, kv_format=FORMAT, pages=pages, on_done=woken.set)
    job = _save(blocks, DIGESTS[:1], [0])
    blocks.close()
    assert objects.closed
    assert woken.is_set() or job.future.cancelled()
