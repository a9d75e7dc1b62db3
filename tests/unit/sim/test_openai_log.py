"""Logs of requests to an OpenAI server: times, names of blocks, sessions."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.core.errors import TraceError
from inlay.sim.formats import read, read_chunks
from inlay.sim.trace import Trace

BYTES_PER_TOKEN = 4
BLOCK = 16


def message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def entry(
    time: Any, messages: list[dict[str, Any]], tokens: int = 0, **more: Any
) -> dict[str, Any]:
    size = sum(len(json.dumps(m, sort_keys=True, separators=(",", ":"))) + 1 for m in messages) + 3
    usage = {"prompt_tokens": tokens or size // BYTES_PER_TOKEN, "completion_tokens": 9}
    return {"time": time, "request": {"messages": messages, **more}, "response": {"usage": usage}}


def read_log(folder: Path, *entries: dict[str, Any], **options: Any) -> Trace:
    file = folder / "log.jsonl"
    file.write_text("".join(json.dumps(one) + "\n" for one in entries))
    return read(file, block_tokens=BLOCK, **options)


def shared(trace: Trace, one: int, other: int) -> int:
    """Leading blocks that two prompts have in common."""
    pairs = zip(trace.chain(one).tolist(), trace.chain(other).tolist(), strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), 0)


SYSTEM = message("system", "You answer politely. " * 40)
FIRST = [SYSTEM, message("user", "What is a segment? " * 10)]
NEXT = [*FIRST, message("assistant", "A region. " * 20), message("user", "And a page?" * 10)]
OTHER = [SYSTEM, message("user", "Something else entirely. " * 20)]


def test_prompts_share_the_blocks_of_the_text_that_they_share(tmp_path: Path) -> None:
    trace = read_log(tmp_path, entry(0, FIRST), entry(5, OTHER), entry(9.5, NEXT), entry(10, FIRST))
    assert trace.arrival_s.tolist() == [0, 5, 9.5, 10]
    block_bytes = BLOCK * BYTES_PER_TOKEN
    system = len(json.dumps(SYSTEM)) // block_bytes
    assert abs(shared(trace, 0, 1) - system) <= 1
    assert shared(trace, 1, 2) == shared(trace, 0, 1)
    assert abs(shared(trace, 0, 2) - trace.input_tokens[0] // BLOCK) <= 1
    assert trace.chain(3).tolist() == trace.chain(0).tolist(), "the same prompt, its end included"


def test_sessions_go_on_with_an_answer(tmp_path: Path) -> None:
    again = [*NEXT, message("assistant", "A place."), message("user", "Thanks.")]
    grown = [*FIRST, message("user", "no answer between")]
    trace = read_log(
        tmp_path, *(entry(i, m) for i, m in enumerate([FIRST, OTHER, NEXT, again, grown, FIRST]))
    )
    assert trace.session.tolist() == [0, 1, 0, 0, 2, 3]


def test_a_session_may_have_a_name(tmp_path: Path) -> None:
    trace = read_log(
        tmp_path,
        entry(0, FIRST, session_id="a"),
        entry(1, OTHER, session_id="b"),
        entry(2, OTHER, session_id="a"),
        {"time": 3, "prompt": "text", "usage": {"prompt_tokens": 1, "completion_tokens": 0}},
    )
    assert trace.session.tolist() == [0, 1, 0, -1]
    assert trace.output_tokens.tolist() == [9, 9, 9, 1]


def test_token_ids_are_exact(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    ids = list(range(100, 140))
    prompts = [ids, [*ids[:32], 7, 8], [*ids[:31], 7, 8], ids]
    trace = read_log(
        tmp_path, *({"created": 50, "prompt": prompt, "usage": usage} for prompt in prompts)
    )
    assert trace.input_tokens.tolist() == [40, 34, 33, 40], "counted, whatever usage says"
    assert (shared(trace, 0, 1), shared(trace, 0, 2)) == (2, 1)
    assert trace.chain(0).tolist() == trace.chain(3).tolist()


def test_tools_are_a_part_of_the_prompt(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "search", "description": "finds " * 50}}]
    trace = read_log(
        tmp_path, entry(0, FIRST, tools=tools), entry(1, FIRST), entry(2, FIRST, tools=tools)
    )
    assert trace.chain(0)[0] != trace.chain(1)[0]
    assert trace.chain(0).tolist() == trace.chain(2).tolist()


def test_more_tokens_than_text(tmp_path: Path) -> None:
    picture = [message("user", "What is this?")]
    trace = read_log(
        tmp_path, entry(0, picture, 900), entry(1, picture, 900), entry(2, picture, 901),
        *(entry(3, NEXT) for _ in range(5)),
    )  # fmt: skip
    assert len(trace.chain(0)) == -(-900 // BLOCK)
    assert trace.chain(0).tolist() == trace.chain(1).tolist()
    assert trace.chain(2)[-1] not in trace.chain(0)


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (["2026-03-01T10:00:00Z", "2026-03-01T10:00:01.25Z"], [0, 1.25]),
        (["2026-03-01T10:00:00+01:00", "2026-03-01T09:00:02"], [0, 2]),
        ([1_700_000_000, 1_700_000_000.5], [0, 0.5]),
        ([30, 20], [0, 10]),
    ],
)
def test_times(tmp_path: Path, times: list[Any], seconds: list[float]) -> None:
    trace = read_log(tmp_path, *(entry(time, FIRST) for time in times))
    assert trace.arrival_s.tolist() == seconds


def test_parts_go_on_from_each_other(tmp_path: Path) -> None:
    entries = [entry(0, FIRST), entry(2, OTHER), entry(1, FIRST), entry(3, NEXT)]
    whole = read_log(tmp_path, *entries)
    file = tmp_path / "log.jsonl"
    # The later half of what has been read waits: the third line may come too late.
    for size in (2, 3):
        parts = list(read_chunks(file, size, block_tokens=BLOCK))
        assert [time for part in parts for time in part.arrival_s] == [0, 1, 2, 3]
        assert np.concatenate([part.session for part in parts]).tolist() == whole.session.tolist()
    with pytest.raises(TraceError, match=r"line 3: is 1.0 s earlier .* read larger parts"):
        list(read_chunks(file, 1, block_tokens=BLOCK))


def test_long_lines_make_small_parts(tmp_path: Path) -> None:
    long = [{"role": "user", "content": "word " * 1_000_000}]
    read_log(tmp_path, *(entry(time, long) for time in range(9)))
    parts = [len(part) for part in read_chunks(tmp_path / "log.jsonl", block_tokens=BLOCK)]
    assert sum(parts) == 9 and max(parts) < 7


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"time": None}, "has no time"),
        ({"time": "yesterday"}, "Invalid isoformat string: 'yesterday'"),
        ({"response": {}}, "has no `usage`"),
        ({"response": {"usage": {"prompt_tokens": 0, "completion_tokens": 1}}}, "`int` >= 1"),
        ({"request": {"model": "m"}}, "either `messages` or a `prompt`"),
        ({"request": {"messages": [], "prompt": ""}}, "either `messages` or a `prompt`"),
        ({"request": {"prompt": ["two", "texts"]}}, "Expected `int`, got `str`"),
        ({"request": {"prompt": [1, -1]}}, "Expected `int` >= 0"),
        ({"request": {"prompt": []}}, "line 2: .*at least 1"),
    ],
)
def test_wrong_lines(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceError, match=rf"line 2: .*{words}" if "line" not in words else words):
        read_log(tmp_path, entry(0, FIRST), {**entry(1, FIRST), **changed}, format="openai")


def test_a_line_nested_without_end(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text('{"messages": [{"content": ' + "[" * 100_000)
    with pytest.raises(TraceError, match="line 1: "):
        read(file)
