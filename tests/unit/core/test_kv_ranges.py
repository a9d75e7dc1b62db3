"""What ranks of one instance send to those of another: each gets its heads, each byte once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.kv_format import KvFormat, gqa_format, mla_format
from inlay.core.kv_ranges import page_ranges
from inlay.core.tensor_parallel import Rank

LAYERS, TOKENS, HEAD_DIM = 3, 4, 2


@st.composite
def sharings(draw: st.DrawFn) -> tuple[int, int, int]:
    """Heads of keys, and two degrees that can share them."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12]))
    can = [n for n in range(1, 17) if kv_heads % n == 0 or n % kv_heads == 0]
    return kv_heads, draw(st.sampled_from(can)), draw(st.sampled_from(can))


def formats(kv_format: KvFormat, degree: int) -> list[KvFormat]:
    return [kv_format.of_rank(Rank(number, degree)) for number in range(degree)]


def part(page_LPTHD: np.ndarray, its: KvFormat) -> np.ndarray:
    """What a rank has of a whole page, as bytes."""
    heads = its.heads
    return np.ascontiguousarray(page_LPTHD[..., heads.start : heads.stop, :]).view(np.uint8).ravel()


def send(page: np.ndarray, senders: list[KvFormat], its: KvFormat, layers: list[int | None]):
    """The page of one receiver, and how often each byte of it was written."""
    got, writes = np.zeros((2, its.page_bytes), np.uint8)
    for mine in senders:
        mine_bytes = part(page, mine)
        assert len(mine_bytes) == mine.page_bytes
        for layer in layers:
            ranges = page_ranges(mine, its, layer)
            if ranges is None:
                continue
            for here, there in zip(ranges.here, ranges.there, strict=True):
                got[there : there + ranges.length] = mine_bytes[here : here + ranges.length]
                writes[there : there + ranges.length] += 1
    return got, writes


@pytest.mark.parametrize("layers", [[None], list(range(LAYERS))], ids=["page", "layers"])
@given(sharings())
def test_each_rank_gets_its_heads_once(layers, sharing: tuple[int, int, int]) -> None:
    kv_heads, senders, receivers = sharing
    whole = gqa_format(
        layers=LAYERS, kv_heads=kv_heads, head_dim=HEAD_DIM, dtype="float32", page_tokens=TOKENS
    )
    page = np.arange(whole.page_bytes // 4, dtype="<f4")
    page = page.reshape(LAYERS, 2, TOKENS, kv_heads, HEAD_DIM)
    for its in formats(whole, receivers):
        got, writes = send(page, formats(whole, senders), its, layers)
        assert (got == part(page, its)).all()
        assert (writes == 1).all()


def test_what_is_alike_goes_in_one_range() -> None:
    whole = gqa_format(layers=LAYERS, kv_heads=4, head_dim=2, dtype="bfloat16")
    mine, its = formats(whole, 2)[1], formats(whole, 2)
    assert page_ranges(mine, its[0], None) is None
    ranges = page_ranges(mine, its[1], None)
    assert (list(ranges.here), list(ranges.there), ranges.length) == ([0], [0], mine.page_bytes)
    ranges = page_ranges(mine, its[1], 2)
    assert list(ranges.here) == list(ranges.there) == [2 * mine.layer_bytes]


def test_latents_are_copied_by_ranks_in_turn() -> None:
    whole = mla_format(layers=LAYERS, width=36, dtype="float32")
    senders, receivers = formats(whole, 2), formats(whole, 4)
    assert all(one.page_bytes == whole.page_bytes for one in senders + receivers)
    sent = [[page_ranges(mine, its, 1) is not None for its in receivers] for mine in senders]
    assert sent == [[True, False, True, False], [False, True, False, True]]


def test_layouts_of_ranks() -> None:
    whole = gqa_format(layers=2, kv_heads=4, head_dim=8, dtype="float32")
    part = whole.of_rank(Rank(1, 2))
    assert [plane.width for plane in part.planes] == [16, 16]
    assert part.whole == whole and part.heads == range(2, 4)
    assert part.of_rank(Rank(3, 4)).heads == range(3, 4)
    assert whole.of_rank(Rank(5, 8)).heads == range(2, 3)
