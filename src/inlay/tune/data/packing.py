"""Samples of several lengths into rows of one length."""

from bisect import bisect_left, insort

import numpy as np

from inlay.tune.data.example import Dataset


def pack(samples: Dataset, row_len: int) -> Dataset:
    """Put samples, longest first, each into the row where the least room is left for it.

    Args:
        samples: rows of one segment each, none longer than `row_len`.
        row_len: tokens of a row at most.

    Returns:
        Rows with a segment for each sample. The order is the same for the same lengths.

    Cost: n log n in the number of samples, and a copy of the tokens.
    """
    lengths = samples.row_lengths_R
    rows: list[list[int]] = []
    with_room: dict[int, list[int]] = {}  # rows by the room that is left in them
    rooms: list[int] = []  # its keys that have rows, in order
    for sample in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[sample])
        at = bisect_left(rooms, length)
        if at == len(rooms):
            room, row = row_len, len(rows)
            rows.append([])
        else:
            room = rooms[at]
            row = with_room[room].pop()
            if not with_room[room]:
                del rooms[at]
        rows[row].append(sample)
        left = room - length
        if left:
            if not with_room.setdefault(left, []):
                insort(rooms, left)
            with_room[left].append(row)
    return _gathered(samples, rows)


def _gathered(samples: Dataset, rows: list[list[int]]) -> Dataset:
    order = np.array([sample for row in rows for sample in row], np.int64)
    counts = np.array([len(row) for row in rows], np.int64)
    return samples.reordered(order, counts)
