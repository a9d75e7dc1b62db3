"""`inlay trace` as a user types it."""

import gzip
import json
from pathlib import Path

from tests.e2e.test_cli_errors import assert_one_line, inlay
from tests.support.tree import ROOT

CONVERSATION = ROOT / "benchmarks/traces/mooncake_conversation.jsonl.gz"


def check(file: Path, *args: str) -> dict[str, object]:
    done = inlay("trace", "check", str(file), "--json", *args)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_what_is_in_a_trace() -> None:
    found = check(CONVERSATION)
    assert (found["requests"], round(found["reusable_share"], 3)) == (12_031, 0.366)
    assert round(found["mean_input_tokens"]) == 12_035
    shown = inlay("trace", "check", str(CONVERSATION)).stdout
    assert "12,031" in shown and "36.6%" in shown


def test_what_is_drawn_is_as_it_must_be(tmp_path: Path) -> None:
    file = tmp_path / "drawn.jsonl.gz"
    args = ("trace", "draw", "tool_and_agent", "--requests", "3000", "--rate", "20", "--seed", "4")
    for out in (file, tmp_path / "again.jsonl.gz"):
        assert inlay(*args, "--out", str(out)).returncode == 0
    again = (tmp_path / "again.jsonl.gz").read_bytes()
    assert gzip.decompress(file.read_bytes()) == gzip.decompress(again)
    found = check(file)
    assert found["requests"] == 3000 and 100 < found["duration_s"] < 200
    assert found["groups"].keys() == {"tool", "agent"}
    pages = tmp_path / "pages.jsonl"
    args = ("trace", "draw", "rag", "--requests", "50", "--block-tokens", "16", "--out", str(pages))
    assert inlay(*args).returncode == 0
    assert check(pages, "--block-tokens", "16")["requests"] == 50


def test_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    line = {"timestamp": 5, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}
    for change, words in (
        ({"timestamp": 4}, "line 2: arrives at 0.004 s, but the one before at 0.005 s: sort"),
        ({"input_length": -1}, "line 2: Expected `int` >= 1"),
        ({"input_length": 2000}, "line 2: has names of 2 blocks, but 2000 input tokens are 4"),
        ({"hash_ids": [3, 2]}, "line 2: block 2 follows block 3, but follows block 1"),
    ):
        file.write_text(json.dumps(line) + "\n" + json.dumps({**line, **change}) + "\n")
        assert_one_line(inlay("trace", "check", str(file)), 1, words)
    file.write_text("")
    assert_one_line(inlay("trace", "check", str(file)), 1, "has no requests")
    out = ("--out", str(file))
    assert_one_line(inlay("trace", "draw", "chats", *out), 2, "none of tool_and_agent, chat")
    assert_one_line(inlay("trace", "draw", "chat", "--rate", "0", *out), 2, "rate must be above 0")
    assert_one_line(inlay("trace", "draw", "chat", "--requests", "0", *out), 2, "at least 1")
