"""Columns of a trace: what is taken, and what is refused with which words."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import TraceError
from inlay.sim.trace import Trace

# Three prompts: the first two have 512 tokens in common, the third nothing.
COLUMNS: dict[str, Any] = {
    "arrival_s": [0.0, 1.5, 1.5],
    "input_tokens": [1000, 1024, 3],
    "output_tokens": [1, 20, 3],
    "block_starts": [0, 2, 4, 5],
    "blocks": np.array([7, 8, 7, 9, 2**64 - 1], np.uint64),
}


def make(**changed: Any) -> Trace:
    return Trace(**{**COLUMNS, **changed})


def test_columns_have_their_dtypes_and_cannot_be_written() -> None:
    trace = make()
    wanted = {
        "arrival_s": "float64", "input_tokens": "int32", "output_tokens": "int32",
        "block_starts": "int64", "blocks": "uint64", "session": "int64", "group": "uint8",
    }  # fmt: skip
    for name, dtype in wanted.items():
        column = getattr(trace, name)
        assert column.dtype == dtype
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0
    assert len(trace) == 3 and trace.duration_s == 1.5
    assert trace.session.tolist() == [-1] * 3 and trace.group.tolist() == [0] * 3
    assert trace.chain(1).tolist() == [7, 9]
    assert trace.reusable_share() == 1 / 5


def test_the_callers_arrays_stay_writable_and_are_not_copied() -> None:
    arrivals = np.array([0.0, 1.0, 2.0])
    trace = make(arrival_s=arrivals)
    assert np.shares_memory(trace.arrival_s, arrivals)
    arrivals[0] = 0.5


def test_a_trace_may_be_empty() -> None:
    trace = make().select([])
    assert len(trace) == 0 and trace.duration_s == 0 and trace.reusable_share() == 0


@pytest.mark.parametrize(
    ("changed", "request_number", "words"),
    [
        ({"arrival_s": [0.0, 2.0, 1.0]}, 2, "at 1.0 s, but the one before at 2.0 s: sort"),
        ({"arrival_s": [-1.0, 0.0, 1.0]}, 0, "arrives at -1.0 s"),
        ({"arrival_s": [0.0, float("nan"), 1.0]}, 1, "arrives at nan s"),
        ({"input_tokens": [1000, -4, 3]}, 1, "input_tokens must be at least 1, got -4"),
        ({"output_tokens": [1, 20, 0]}, 2, "output_tokens must be at least 1, got 0"),
        ({"input_tokens": [1000, 1025, 3]}, 1, "2 blocks, but 1025 input tokens are 3 blocks of"),
        ({"block_starts": [0, 2, 4, 4]}, 2, "0 blocks, but 3 input tokens are 1 blocks"),
        ({"block_starts": [1, 3, 5, 6]}, None, "from 0 to the 5 blocks, not from 1 to 6"),
        ({"blocks": [7, 8, 7, 9, 9]}, 2, "9 begins the prompt, but follows block 7 in request 1"),
        ({"blocks": [7, 8, 5, 8, 9]}, 1, "8 follows block 5, but follows block 7 in request 0"),
        ({"blocks": [7, 8, 8, 9, 5]}, 1, "8 begins the prompt, but follows block 7 in request 0"),
        ({"blocks": [7, 7, 8, 9, 5]}, 0, "7 follows block 7, but begins the prompt in request 0"),
        ({"blocks": [7, -8, 7, 9, 5]}, None, "blocks must be 0 to 18446744073709551615, got -8"),
        ({"input_tokens": [1000, 2**31, 3]}, None, "to 2147483647, got 2147483648"),
        ({"input_tokens": [1e3, 1024.5, 3.0]}, None, "input_tokens must be of int32, got float64"),
        ({"output_tokens": [1, 2]}, None, r"output_tokens must have the shape \(3,\)"),
        ({"blocks": [[7]]}, None, "blocks must have one axis"),
        ({"block_tokens": 0}, None, "block_tokens must be at least 1, got 0"),
        ({"session": [0, -2, 1]}, 1, "session must be -1 or more, got -2"),
        ({"group": [0, 1, 0]}, 1, "group 1 is none of the 1 groups"),
        ({"groups": ()}, None, "1 to 256 names, got 0"),
    ],
)
def test_wrong_columns(changed: dict[str, Any], request_number: int | None, words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        make(**changed)
    assert caught.value.request == request_number
    if request_number is not None:
        assert str(caught.value).startswith(f"request {request_number}: ")


@given(st.lists(st.integers(0, 2)))
def test_select_takes_whole_requests(numbers: list[int]) -> None:
    trace = make(arrival_s=[0.0, 0.0, 0.0], session=[4, 5, 6], group=[1, 0, 1], groups=("a", "b"))
    chosen = trace.select(numbers)
    assert chosen.input_tokens.tolist() == [COLUMNS["input_tokens"][n] for n in numbers]
    assert chosen.session.tolist() == [4 + n for n in numbers]
    assert [chosen.groups[g] for g in chosen.group] == ["bab"[n] for n in numbers]
    for place, number in enumerate(numbers):
        assert chosen.chain(place).tolist() == trace.chain(number).tolist()


def test_the_same_requests_at_other_times() -> None:
    trace = Trace(
        arrival_s=[0.0, 1.0],
        input_tokens=[5, 3],
        output_tokens=[1, 1],
        block_starts=[0, 2, 3],
        blocks=[1, 2, 1],
        block_tokens=4,
    )
    later = trace.at_times(trace.arrival_s + 2)
    assert later.arrival_s.tolist() == [2.0, 3.0] and later.blocks is trace.blocks
    assert not later.arrival_s.flags.writeable and trace.arrival_s.tolist() == [0.0, 1.0]
    with pytest.raises(TraceError, match="sort the requests by arrival"):
        trace.at_times(np.array([2.0, 1.0]))
    with pytest.raises(TraceError, match="shape"):
        trace.at_times(np.array([2.0]))
    with pytest.raises(TraceError, match="sort the requests by arrival"):
        trace.select([1, 0])
