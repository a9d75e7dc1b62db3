"""`inlay generate` on a tiny random model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import make_tiny_model

GENERATE = [sys.executable, "-c", "from inlay.serve.cli import main; main()", "generate"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama")


def generate(
    *arguments: str, stdin: str = ""
) -> "tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]":
    result = subprocess.run(
        [*GENERATE, *arguments], input=stdin, capture_output=True, text=True, timeout=90
    )
    return result, [json.loads(line) for line in result.stdout.splitlines()]


def test_files_in_and_out(model: Path, tmp_path: Path) -> None:
    prompts, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [{"prompt": f"one two {i}", "max_tokens": 1 + i % 7, "id": i} for i in range(60)]
    rows[5] = {"messages": [{"role": "user", "content": "Define lantern."}], "id": 5}
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--prompts", str(prompts), "--output", str(output), "--temperature", "0"]
    result, _ = generate(str(model), *arguments, "--max-tokens", "4")
    assert result.returncode == 0, result.stderr
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["id"] for line in found] == list(range(60))
    assert all(line["output_tokens"] <= 7 and line["prompt_tokens"] > 0 for line in found)
    assert "60 prompts" in result.stderr


def test_text_from_standard_input(model: Path) -> None:
    arguments = [str(model), "--max-tokens", "5", "--temperature", "0.9", "--seed", "3"]
    result, lines = generate(*arguments, stdin="Define lantern.\n\nDefine lantern.\n")
    assert result.returncode == 0, result.stderr
    assert [line["index"] for line in lines] == [0, 1]
    assert lines[0]["text"] == lines[1]["text"]  # the same seed
    small = ["--set", "engine.scheduler.max_running=2", "--set", "engine.scheduler.max_waiting=2"]
    raw, raw_lines = generate(*arguments, *small, "--raw", stdin="Define lantern.\n" * 30)
    assert raw.returncode == 0, raw.stderr
    assert len(raw_lines) == 30
    assert raw_lines[0]["prompt_tokens"] < lines[0]["prompt_tokens"]


def test_bad_lines_are_recorded_and_the_exit_code_tells(model: Path) -> None:
    rows = [
        '{"prompt": "fine", "max_tokens": 2}',
        '{"prompt": "hot", "temperature": -3}',
        "{broken",
        json.dumps({"prompt": "word " * 5000}),
        json.dumps({"prompt": "x", "guided_json": {"type": "nonsense"}}),
        '{"prompt": "fine", "max_tokens": 2}',
    ]
    result, lines = generate(str(model), "--context", "128", stdin="\n".join(rows))
    assert result.returncode == 1
    assert [("error" in line) for line in lines] == [False, True, True, True, True, False]
    assert lines[1]["error"]["message"].startswith("temperature is -3")
    assert lines[2]["error"]["line"] == 3
    assert lines[3]["error"]["code"] == "context_length_exceeded"
    assert "4 of 6 failed" in result.stderr
    assert "Traceback" not in result.stderr
