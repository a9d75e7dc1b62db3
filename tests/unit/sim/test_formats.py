"""Files of each format: what is read from them, and which line an error names."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.errors import TraceError
from inlay.sim.formats import read, read_chunks, write
from inlay.sim.trace import Trace
from tests.support.tree import ROOT

MOONCAKE = ROOT / "benchmarks" / "traces"
LINE = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [0, 1]}
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319607,512,8\n"
    "2023-11-16 18:17:04.0319607,110,27\n"
)


def lines_of(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def assert_same(one: Trace, other: Trace) -> None:
    for name in ("arrival_s", "input_tokens", "output_tokens", "block_starts", "blocks", "session"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert [one.groups[g] for g in one.group] == [other.groups[g] for g in other.group]


@pytest.mark.parametrize(
    ("name", "requests", "mean_input", "mean_output", "reusable"),
    [("conversation", 12_031, 12_035, 343, 0.366), ("synthetic", 3_993, 15_325, 149, 0.640)],
)
def test_mooncakes_own_traces(
    name: str, requests: int, mean_input: int, mean_output: int, reusable: float
) -> None:
    trace = read(MOONCAKE / f"mooncake_{name}.jsonl.gz")
    assert len(trace) == requests
    assert round(trace.input_tokens.mean()) == mean_input
    assert round(trace.output_tokens.mean()) == mean_output
    assert round(trace.reusable_share(), 3) == reusable
    assert (trace.session == -1).all()


def test_chunks_are_the_trace_in_parts(tmp_path: Path) -> None:
    file = MOONCAKE / "mooncake_synthetic.jsonl.gz"
    whole = read(file)
    parts = list(read_chunks(file, 1000))
    assert [len(part) for part in parts] == [1000, 1000, 1000, 993]
    for name in ("arrival_s", "input_tokens", "output_tokens", "blocks"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    write(parts, tmp_path / "again.jsonl.gz")
    assert_same(read(tmp_path / "again.jsonl.gz"), whole)
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(gzip.decompress(file.read_bytes()))
    assert_same(read(plain), whole)


def test_parts_bound_the_memory() -> None:
    file = MOONCAKE / "mooncake_synthetic.jsonl.gz"

    def peak_bytes(requests: int) -> int:
        tracemalloc.start()
        try:
            assert sum(len(part) for part in read_chunks(file, requests)) == 3993
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak_bytes(200) < peak_bytes(4000) / 5


def test_azure(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(AZURE)
    trace = read(file)
    np.testing.assert_allclose(trace.arrival_s, [0, 0.0520007, 0.0520007], rtol=0, atol=1e-12)
    assert trace.input_tokens.tolist() == [4808, 512, 110]
    assert trace.output_tokens.tolist() == [10, 8, 27]
    assert trace.blocks.tolist() == list(range(10 + 1 + 1)), "nothing is shared"
    assert trace.chain(1).tolist() == [10]
    file.write_text(AZURE.replace("\n", "\r\n"))
    parts = list(read_chunks(file, 1))
    assert [part.blocks.tolist() for part in parts] == [list(range(10)), [10], [11]]
    assert [part.arrival_s[0] for part in parts] == trace.arrival_s.tolist()
    file.write_text("2024-05-10 00:00:00.009930+00:00,2162,5\n2024-05-10 00:00:01+00:00,1,1\n")
    assert read(file, format="azure").arrival_s.tolist() == [0, 0.99007]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lines_of(LINE) + "\n{broken\n", r"line 3: JSON is malformed"),
        (lines_of(LINE, {**LINE, "output_length": "7"}), r"line 2: Expected `int`, got `str`"),
        (lines_of(LINE, {**LINE, "input_length": -600}), "line 2: .*`, got -600"),
        (lines_of(LINE, {"hash_ids": []}), "line 2: .*missing required field `timestamp`"),
        (lines_of(LINE, {**LINE, "timestamp": 1499}), "line 2: arrives at 1.499 s, but the one"),
        (lines_of(LINE, {**LINE, "input_length": 1200}), "line 2: has names of 2 blocks, but 1200"),
        (lines_of(LINE, {**LINE, "hash_ids": [3, 1]}), "line 2: block 1 follows block 3, but fol"),
        (lines_of(LINE, {**LINE, "hash_ids": [3, -1]}), r"line 2: hash_ids must be 0 to .* got -1"),
        (lines_of(LINE, {**LINE, "hash_ids": [3, 2**64]}), "line 2: hash_ids must be 0 to"),
        (lines_of(LINE) + json.dumps(LINE) + json.dumps(LINE), "line 2: JSON is malformed"),
        (lines_of(LINE, {**LINE, "session": 2**63}), "line 2: Expected `int` <= 9223372036854775"),
        (AZURE + "2023-11-16 18:17:05,1\n", "line 5: must have 3 cells"),
        (AZURE + "2023-11-16 18:17:05,x,3\n", "line 5: invalid literal for int"),
        (AZURE + "2023-13-16 18:17:05,1,3\n", "line 5: Month out of range"),
        (AZURE + "2023-11-16 18:17:05,-1,3\n", "line 5: input_tokens must be at least 1, got -1"),
        (AZURE + "2023-11-16 18:17:04,1,3\n", "line 5: arrives at .* sort the requests"),
        (AZURE + "2023-11-16 18:16:59,1,3\n", "line 5: arrives 4.* s before the first request"),
        ("time;tokens\n", "begins like none of the formats mooncake, azure, openai: 'time;tok"),
    ],
)
@pytest.mark.parametrize("requests", [None, 2])
def test_errors_name_the_line(tmp_path: Path, text: str, words: str, requests: int | None) -> None:
    file = tmp_path / "bad"
    file.write_text(text)
    with pytest.raises(TraceError, match=words):
        read(file) if requests is None else list(read_chunks(file, requests))


@pytest.mark.parametrize("text", [lines_of(LINE, LINE), AZURE])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_marks_and_ends_of_lines_change_nothing(tmp_path: Path, text: str, end: str) -> None:
    plain, marked = tmp_path / "plain", tmp_path / "marked"
    plain.write_text(text)
    marked.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", end).encode())
    expected, found = read(plain), read(marked)
    assert len(found.arrival_s) == len(expected.arrival_s) > 1
    assert (found.input_tokens == expected.input_tokens).all()
    assert (found.blocks == expected.blocks).all()


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("version https://git-lfs.github.com/spec/v1\nsize 1\n")
    with pytest.raises(TraceError, match="trace is a pointer of Git LFS"):
        read(tmp_path / "trace")


def test_a_file_without_requests(tmp_path: Path) -> None:
    file = tmp_path / "empty"
    for text in ("", "\n", AZURE.splitlines()[0]):
        file.write_text(text)
        assert not list(read_chunks(file))
        with pytest.raises(TraceError, match="has no requests"):
            read(file)


@pytest.mark.parametrize("damage", ["cut off", "other bytes", "other checksum"])
def test_a_damaged_gzip_file(tmp_path: Path, damage: str) -> None:
    packed = bytearray((MOONCAKE / "mooncake_synthetic.jsonl.gz").read_bytes())
    if damage == "cut off":
        del packed[50_000:]
    else:
        place = 50_000 if damage == "other bytes" else len(packed) - 8
        packed[place : place + 4] = b"\xff\x00\xff\x00"
    file = tmp_path / "damaged.jsonl.gz"
    file.write_bytes(packed)
    with pytest.raises(TraceError, match=r"damaged gzip file|damaged.jsonl.gz, line \d+: "):
        read(file)


def test_wrong_arguments(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text(AZURE)
    with pytest.raises(TraceError, match="'csv' is none of auto, mooncake, azure, openai"):
        read(file, format="csv")
    with pytest.raises(TraceError, match="block_tokens must be at least 1, got 0"):
        read(file, block_tokens=0)
    with pytest.raises(TraceError, match="at least 1 request, got 0"):
        list(read_chunks(file, 0))
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**9),
            st.integers(1, 1600),
            st.integers(1, 2**31 - 1),
            st.integers(-1, 2**63 - 1),
            st.integers(0, 2),
        ),
        min_size=1,
    )
)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    rows.sort()
    times, inputs, outputs, sessions, groups = map(np.array, zip(*rows, strict=True))
    counts = -(-inputs // 512)
    trace = Trace(
        arrival_s=times / 1000,
        input_tokens=inputs,
        output_tokens=outputs,
        block_starts=np.concatenate([[0], counts.cumsum()]),
        blocks=np.arange(counts.sum(), dtype=np.uint64) + np.uint64(2**64 - 1 - int(counts.sum())),
        session=sessions,
        group=groups,
        groups=("default", "agents", "größer"),
    )
    file = tmp_path_factory.mktemp("written") / "trace.jsonl"
    write(trace, file)
    assert_same(read(file), trace)
