"""Names over parts of a trace, against those of the whole."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import TraceError
from inlay.sim.formats import read_chunks, write
from inlay.sim.known_names import KnownNames
from inlay.sim.trace import Trace
from inlay.sim.transform import join


def trace_of(chains: list[list[int]], at_s: float = 0.0) -> Trace:
    return Trace(
        arrival_s=np.full(len(chains), at_s),
        input_tokens=[len(chain) * 4 for chain in chains],
        output_tokens=np.ones(len(chains), int),
        block_starts=np.cumsum([0, *map(len, chains)]),
        blocks=np.array([name for chain in chains for name in chain], np.uint64),
        block_tokens=4,
    )


CHAINS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=3)


@given(st.lists(CHAINS, min_size=1, max_size=12))
def test_parts_are_wrong_where_the_whole_is(parts: list[list[list[int]]]) -> None:
    traces = []
    for chains in parts:
        try:
            traces.append(trace_of(chains))
        except TraceError:
            return  # wrong by itself
    known = KnownNames()
    try:
        whole = join(traces)
    except TraceError:
        with pytest.raises(TraceError, match="in an earlier request"):
            for trace in traces:
                known.add(trace)
        return
    seen = np.concatenate([known.add(trace) for trace in traces])
    assert known.blocks == len(whole.blocks)
    _, firsts = np.unique(whole.blocks, return_index=True)
    assert np.array_equal(np.flatnonzero(~seen), np.sort(firsts))
    assert known.blocks - known.again == len(np.unique(whole.blocks))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([[1, 2], [7, 2]], "line 4: block 2 follows block 7, but follows block 1 in an earlier"),
        ([[1, 2], [2]], "line 4: block 2 begins a prompt, but follows block 1 in an earlier"),
        ([[1, 2], [1], [9, 1]], "line 5: block 1 follows block 9, but begins a prompt in an"),
    ],
)
def test_the_line_is_named(tmp_path: Path, wrong: list[list[int]], words: str) -> None:
    file = tmp_path / "trace.jsonl"
    write([trace_of([chain]) for chain in ([1, 2], [4], *wrong)], file)
    with pytest.raises(TraceError, match=words):
        list(read_chunks(file, 1, block_tokens=4, known=KnownNames()))
