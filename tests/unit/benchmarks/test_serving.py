"""Parts of serving/startup and serving/memory that need no model server."""

import contextlib
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from benchmarks.case import Run, load_case
from benchmarks.models.gguf_tokenizer import made_tokenizer, tokenizer_of
from benchmarks.serving import memory, startup
from benchmarks.serving.asking import chat, first_token_s
from benchmarks.serving.llama_cpp import label
from benchmarks.serving.server import Server
from inlay.models.gguf.tokenizer import write_tokenizer
from inlay.models.source import resolve_model
from inlay.models.text import Text

TEXT = "Define lantern.\nGrüße, 你好 🙂 12345"


@pytest.mark.parametrize("size", [300, 4096, 70_000])
def test_a_made_tokenizer_has_its_size_and_tells_every_text(tmp_path: Path, size: int) -> None:
    metadata = made_tokenizer(size)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == len(metadata["tokenizer.ggml.token_type"]) == size
    assert len(metadata["tokenizer.ggml.merges"]) == size - 256 - 3
    write_tokenizer(metadata, tmp_path)
    text = Text.load(tmp_path)
    ids = text.encode(TEXT)
    assert text.decode(ids) == TEXT and max(ids) < size


def test_the_demo_models_tokenizer_is_the_same_in_a_gguf_file(tmp_path: Path) -> None:
    directory = resolve_model(None).directory
    write_tokenizer(tokenizer_of(directory), tmp_path)
    ours, theirs = Text.load(directory), Text.load(tmp_path)
    assert theirs.encode(TEXT) == ours.encode(TEXT)
    question = [{"role": "user", "content": "Define lantern."}]
    assert theirs.render_chat(question) == ours.render_chat(question)


CHILD = "import time\nwhile time.process_time() < 0.3: pass"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}])
print(flush=True)
input()
"""


def test_processor_time_has_that_of_children_that_ended() -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", PARENT], **pipes) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert Server("", process).cpu_s() >= 0.3
        process.kill()


class Handler(BaseHTTPRequestHandler):
    """Answers a stream with `answer`, and all else with `{}`; keeps what it was asked."""

    answer = b""
    asked: list[str] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append(body)
        answer = self.answer if '"stream"' in body else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(Handler, "asked", [])
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_first_token_is_the_first_event(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "answer", b": hello\n\ndata: {}\n\ndata: [DONE]\n\n")
    before = time.perf_counter()
    assert before < first_token_s(url, 8) < time.perf_counter()
    monkeypatch.setattr(Handler, "answer", b"data: [DONE]\n\n")
    with pytest.raises(RuntimeError, match="without a token"):
        first_token_s(url, 8)


def test_a_chat_asks_other_questions_each_time_and_the_same_in_each_run(url: str) -> None:
    chat(url, requests=3, prompt_words=12, max_tokens=4, seed=1)
    first = list(Handler.asked)
    chat(url, requests=3, prompt_words=12, max_tokens=4, seed=1)
    assert len(set(first)) == 3 and Handler.asked == first * 2


def test_the_peers_label_has_its_version(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    (site / "llama_cpp_python-0.3.36.dist-info").mkdir(parents=True)
    assert label(tmp_path) == "llama.cpp (llama-cpp-python 0.3.36)"


class Running:
    """A server that holds a MiB more at each look."""

    def __init__(self, url: str, held: float) -> None:
        self.url = url
        self._held = itertools.count(held)
        self._cpu = held

    def rss_mib(self) -> float:
        return next(self._held)

    def cpu_s(self) -> float:
        return self._cpu


class Servers:
    """Two servers that nobody started: in which order, and what they hold."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.loads: list[str] = []

    @contextlib.contextmanager
    def starts(self, run: Run, model: str, load: str) -> Iterator[dict[str, Callable[[], Any]]]:
        self.loads.append(load)
        yield {"": lambda: self._run(f"{model} ours", 4.0), "p": lambda: self._run(model, 2.0)}

    @contextlib.contextmanager
    def _run(self, name: str, held: float) -> Iterator[Running]:
        self.started.append(name)
        yield Running(name, held)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    found = Servers()
    for module in (startup, memory):
        monkeypatch.setattr(module, "starts", found.starts)
    monkeypatch.setattr(startup, "first_token_s", lambda url, tokens: time.perf_counter())
    monkeypatch.setattr(memory, "chat", lambda *arguments: None)
    return found


def test_starts_take_turns_and_give_three_measurements(servers: Servers) -> None:
    case = load_case("serving/startup")
    run = Run(case=replace(case, repeats=2))
    samples = list(startup.measure(run))
    assert servers.started[:4] == ["demo ours", "demo", "demo", "demo ours"]
    assert set(servers.loads) == {"lazy"}
    models = ["demo", "smollm2-135m", "qwen2.5-coder-0.5b"]
    names = [(one.params["model"], one.name) for one in samples]
    assert sorted(names) == sorted((model, name) for model in models for name in startup.NAMES)
    assert all(case.declared(one.name, one.params) for one in samples)
    cpu = next(one for one in samples if one.name == "first_answer_cpu_s")
    assert cpu.values == [4.0, 4.0] and cpu.peers == {"p": [2.0, 2.0]}


def test_memory_is_looked_at_before_and_after_the_requests(servers: Servers) -> None:
    case = load_case("serving/memory")
    run = Run(case=case, quick=True)
    samples = list(memory.measure(run))
    assert set(servers.loads) == {"whole"}
    assert all(case.declared(one.name, one.params) for one in samples)
    found = {one.params["when"]: one for one in samples}
    assert found["idle"].values == [4.0] and found["idle"].peers == {"p": [2.0]}
    assert found["chat"].values == [5.0] and found["chat"].peers == {"p": [3.0]}
