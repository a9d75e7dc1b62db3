"""`inlay chat` on a tiny random model: without a terminal, in one, and against a server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import RunningServer, running_server
from tests.support.terminal import Terminal
from tests.support.tiny_models import make_tiny_model

CHAT = [sys.executable, "-c", "from inlay.serve.cli import main; main()", "chat"]
FIGURES = re.compile(
    r"prompt eval count:    \d+ token\(s\).*\n"
    r"prompt eval duration: [\d.]+ m?s\n"
    r"prompt eval rate:     [\d.]+ tokens/s\n"
    r"eval count:           (\d+) token\(s\)\n"
    r"eval duration:        [\d.]+ m?s\n"
    r"eval rate:            [\d.]+ tokens/s\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "tiny"
    return make_tiny_model(directory, "qwen3_moe", max_position_embeddings=32768)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    with running_server(model, served_model_name=["tiny"], api_key="secret") as running:
        yield running


def chat(stdin: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*CHAT, *arguments], input=stdin, capture_output=True, text=True, timeout=90
    )


def test_lines_of_standard_input_are_messages(model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    result = chat(
        f"/set max_tokens=6 temperature=0\nDefine lantern.\nAnd bridge?\n/save {saved}\n",
        str(model),
        "--system",
        "Be brief.",
    )
    assert result.returncode == 0, result.stderr
    found = FIGURES.findall(result.stdout)
    assert len(found) == 2 and all(1 <= int(count) <= 6 for count in found)
    talk = json.loads(saved.read_text())
    assert talk["system"] == "Be brief."
    assert [message["role"] for message in talk["messages"]] == ["user", "assistant"] * 2
    assert talk["messages"][1]["content"] in result.stdout
    assert "qwen3_moe" in result.stderr


def test_the_second_question_reuses_the_first(model: Path) -> None:
    question = "What does the word lantern mean in this sentence about the stairs and the door?"
    result = chat(f"/set max_tokens=4 temperature=0\n{question}\nAnd bridge?\n", str(model))
    counts = re.findall(r"prompt eval count: .*", result.stdout)
    assert "cache" not in counts[0] and "from the cache" in counts[1]


def test_a_refused_question_does_not_end_the_chat(model: Path) -> None:
    long = "lantern " * 3000
    result = chat(f"/set max_tokens=3\n{long}\nHello.\n", str(model), "--context", "256")
    assert result.returncode == 1
    assert result.stderr.count("error: ") == 1 and "context" in result.stderr
    assert len(FIGURES.findall(result.stdout)) == 1


def test_ctrl_c_stops_the_answer_and_nothing_else(model: Path) -> None:
    with Terminal([*CHAT, str(model)]) as terminal:
        terminal.wait_for(r">>> ")
        # A random model ends where it likes, and where depends on the processor's last bits.
        terminal.type("/set temperature=0.8 seed=1 ignore_eos=true max_tokens=32000\n")
        terminal.wait_for(r"max_tokens=32000[\s\S]*>>> ")
        terminal.type("Tell me everything.\n")
        terminal.wait_for(r"everything\.\n[\s\S]{20}")
        terminal.type("\x03")
        shown = terminal.wait_for(r"eval rate: [\s\S]*eval rate: .*\n[\s\S]*>>> ")
        assert "[stopped]" in shown
        terminal.type("/set max_tokens=3\n")
        terminal.wait_for(r"max_tokens=3\n[\s\S]*>>> ")
        terminal.type('"""two\nlines"""\n')
        terminal.wait_for(r"eval count: +3 token[\s\S]*>>> ")
        terminal.press_until("\x03", r"leaves[\s\S]*>>> ")
        terminal.type("\x04")
        assert terminal.wait_for_end() == 0


def test_ctrl_c_while_loading_ends_quietly(model: Path) -> None:
    with Terminal([*CHAT, str(model)]) as terminal:
        terminal.wait_for("loading")
        terminal.type("\x03")
        assert terminal.wait_for_end() == 130
        assert "Traceback" not in terminal.text


def test_with_a_running_server(server: RunningServer) -> None:
    arguments = ["--url", server.url, "--api-key", "secret"]
    result = chat("/set max_tokens=5 temperature=0\nHello.\n/stats\n", *arguments)
    assert result.returncode == 0, result.stderr
    assert len(FIGURES.findall(result.stdout)) == 1
    assert "tiny at http" in result.stderr and "/metrics" in result.stdout


def test_with_a_server_and_a_wrong_key(server: RunningServer) -> None:
    result = chat("Hello.\n", "--url", server.url, "--api-key", "wrong")
    assert result.returncode == 1
    assert result.stderr.startswith("inlay: error: HTTP 401")


def test_output_may_be_cut_off(model: Path) -> None:
    # As in `inlay chat | head -1`: no complaint, and the engine's process is not left behind.
    read, write = os.pipe()
    process = subprocess.Popen(
        [*CHAT, str(model)],
        stdin=subprocess.PIPE,
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write)
    os.close(read)
    _, errors = process.communicate("/set max_tokens=3\nHello.\nHello.\n", timeout=60)
    assert process.returncode == 1
    assert "Traceback" not in errors and "Exception" not in errors
