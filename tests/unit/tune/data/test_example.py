import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.tune import Dataset, collate
from inlay.tune.data.example import NO_LOSS, row_order
from inlay.tune.data.packing import pack


def samples(lengths: list[int]) -> Dataset:
    """Sample i is made of tokens 1000 i + position; the second half of each has a loss."""
    starts = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    ids = np.concatenate([1000 * i + np.arange(n) for i, n in enumerate(lengths)]).astype(np.int32)
    positions = np.concatenate([np.arange(n) for n in lengths])
    halves = np.repeat([n // 2 for n in lengths], lengths)
    labels = np.where(positions >= halves, ids, np.int32(NO_LOSS))
    return Dataset(ids, labels, starts, starts[:-1])


def test_rows_and_what_they_hold() -> None:
    rows = samples([4, 2, 3])
    assert len(rows) == rows.num_segments == 3
    assert rows.num_tokens == 9
    assert rows[-1].input_ids_N.tolist() == [2000, 2001, 2002]
    assert rows[0].labels_N.tolist() == [NO_LOSS, NO_LOSS, 2, 3]
    assert rows[1].positions_N.tolist() == [0, 1]
    assert [row.num_loss_tokens for row in rows] == [2, 1, 2]
    assert rows.num_loss_tokens == 5
    with pytest.raises(IndexError, match="row 3 of 3"):
        rows[3]


def test_a_packed_row_has_segments_that_do_not_see_each_other() -> None:
    rows = pack(samples([4, 2, 3, 1]), 7)
    assert len(rows) == 2
    first = rows[0]
    assert first.input_ids_N.tolist() == [0, 1, 2, 3, 2000, 2001, 2002]
    assert first.segment_starts_S.tolist() == [0, 4]
    assert first.positions_N.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert rows[1].segment_starts_S.tolist() == [0, 2]
    batch = collate([rows[1], first])
    assert batch.num_rows == 2
    assert batch.segment_starts_S.tolist() == [0, 2, 3, 7, 10]
    assert batch.positions_T.tolist() == [0, 1, 0, 0, 1, 2, 3, 0, 1, 2]
    # The target is the next token of the same segment, where that has a loss.
    none = NO_LOSS
    assert batch.targets_T.tolist() == [1001, none, none, none, 2, 3, none, 2001, 2002, none]
    assert batch.num_loss_tokens == rows.num_loss_tokens
    for array in (batch.input_ids_T, batch.targets_T, batch.positions_T, batch.segment_starts_S):
        assert array.dtype == np.int32
    with pytest.raises(ValueError, match="needs a row"):
        collate([])


@given(st.lists(st.integers(1, 30), min_size=1, max_size=60), st.integers(30, 64))
def test_packing_keeps_every_sample_whole(lengths: list[int], row_len: int) -> None:
    before = samples(lengths)
    after = pack(before, row_len)
    assert max(after.row_lengths_R) <= row_len
    assert after.num_segments == len(before)
    found = []
    for row in after:
        ends = [*row.segment_starts_S[1:], len(row.input_ids_N)]
        for start, end in zip(row.segment_starts_S, ends, strict=True):
            found.append((row.input_ids_N[start:end].tolist(), row.labels_N[start:end].tolist()))
    expected = [(row.input_ids_N.tolist(), row.labels_N.tolist()) for row in before]
    assert sorted(found) == sorted(expected)
    # Two rows that would fit into one are never left apart.
    assert sum(sorted(after.row_lengths_R)[:2]) > row_len or len(after) == 1


def test_order_of_an_epoch_follows_from_seed_and_number() -> None:
    first = row_order(100, seed=42, epoch=0)
    assert sorted(first) == list(range(100))
    assert first.tolist() == row_order(100, seed=42, epoch=0).tolist()
    assert first.tolist() != row_order(100, seed=42, epoch=1).tolist()
    assert first.tolist() != row_order(100, seed=43, epoch=0).tolist()
    assert row_order(3, seed=1, epoch=0, shuffle=False).tolist() == [0, 1, 2]
