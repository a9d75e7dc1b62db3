"""Ports, configuration, the gate before the application, and the banner."""

import importlib.abc
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from inlay.__main__ import main
from inlay.core.errors import (
    AddressInUseError,
    ConfigError,
    EngineDiedError,
    UnsupportedModelError,
)
from inlay.core.messages import LoadProgress
from inlay.engine.config import EngineConfig
from inlay.models.source import ModelSource
from inlay.serve import local_engine
from inlay.serve.banner import banner, weights_line
from inlay.serve.config import ServeConfig
from inlay.serve.gate import Gate
from inlay.serve.http_server import bind
from inlay.serve.openai.errors import ServerStoppingError
from inlay.serve.openai.protocol import ChatRequest
from tests.unit.serve.stand_in import make_service


def test_bind_takes_the_port_at_once() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(AddressInUseError, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port)
        with socket.create_connection(("127.0.0.1", port)):
            pass
    with bind("localhost", 0) as again:
        assert again.getsockname()[1]


@pytest.mark.parametrize("host", ["no such host", "203.0.113.7"])
def test_bind_says_what_is_wrong_with_an_address(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        bind(host, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"port": 70000},
        {"host": ""},
        {"served_model_name": ("a", "")},
        {"served_model_name": "a,,b"},
        {"api_key": ""},
        {"api_key": "schlüssel"},
        {"max_body_bytes": 0},
        {"max_choices": 0},
        {"drain_s": -1},
        {"max_completion_tokens": 0},
    ],
)
def test_config_is_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ServeConfig(**options)


def test_names() -> None:
    assert ServeConfig().names == ()
    assert ServeConfig(served_model_name="a, b").names == ("a", "b")
    assert ServeConfig(served_model_name=("a b",)).names == ("a b",)


async def test_stopping_is_not_called_a_dead_engine(tokenizer_directory: Path) -> None:
    service, engine = make_service(tokenizer_directory)
    engine.fails_after, engine.error = 1, EngineDiedError("the engine was stopped")
    for stopping, expected in ((False, EngineDiedError), (True, ServerStoppingError)):
        service.stopping = stopping
        body = ChatRequest(messages=[{"role": "user", "content": "a"}])
        with pytest.raises(expected):
            async for _ in service.chat(body):
                pass
    assert ServerStoppingError.code == "server_stopping"


async def test_chat_needs_a_template(
    tokenizer_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in tokenizer_directory.iterdir():
        if file.name != "chat_template.jinja":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    source = ModelSource(directory=tmp_path, name="plain")
    monkeypatch.setattr(local_engine, "resolve_model", lambda *_, **__: source)
    with pytest.raises(UnsupportedModelError, match="`inlay generate some/plain --raw`"):
        await local_engine.start_local_engine(EngineConfig(model="some/plain"), chats=True)


def test_ctrl_c_while_importing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == "inlay.serve.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "inlay.serve.cli", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


async def test_gate() -> None:
    gate = Gate()
    transport = httpx.ASGITransport(app=gate)
    async with httpx.AsyncClient(transport=transport, base_url="http://inlay") as client:
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert "still being loaded" in answer.json()["error"]["message"]
        assert answer.headers["retry-after"]

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        gate.open(app)
        assert (await client.get("/health")).status_code == 204
        gate.close("the server is stopping")
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")


def test_banner(tokenizer_directory: Any) -> None:
    service, engine = make_service(tokenizer_directory)
    some = engine.load_progress
    text = banner("http://h:1", "tiny", engine.info, some, page=True, key=True, start_s=1.25)
    assert "  600 B of 1000 B of weights are loaded; the others follow, needed ones first\n" in text
    assert "serves tiny at http://h:1 (ready in 1.2 s)" in text
    assert "\n  keys and values of 1600 tokens: 100.0 KiB (--kv-memory sets it)\n" in text
    assert "curl http://h:1/v1/chat/completions -H" in text
    assert 'base_url="http://h:1/v1"' in text
    assert "Chat page" in text
    every = LoadProgress(loaded_bytes=4 << 30, total_bytes=4 << 30, seconds=2.0, over=True)
    assert "deferred" not in text
    split = msgspec.structs.replace(engine.info, placement="layers 0 to 3 on cuda:0", deferred=2)
    text = banner("u", "n", split, some, page=False, key=False, start_s=0)
    assert "\n  layers 0 to 3 on cuda:0\n  2 experts of a token are deferred" in text
    text = banner("u", "n", engine.info, every, page=False, key=False, start_s=0)
    assert "Chat page" not in text
    assert "  4.0 GiB of 4.0 GiB of weights are loaded, in 2.0 s (2.15 GB/s)\n" in text
    short = LoadProgress(loaded_bytes=1 << 30, total_bytes=4 << 30, seconds=2.0, over=True)
    assert weights_line(short).endswith("the others stay in their file, since memory is short")
