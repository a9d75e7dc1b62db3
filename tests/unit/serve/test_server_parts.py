"""Ports, configuration, the gate before the application, and the banner."""

import socket
from typing import Any

import httpx
import pytest

from inlay.core.errors import AddressInUseError, ConfigError
from inlay.serve.banner import banner
from inlay.serve.config import ServeConfig
from inlay.serve.gate import Gate
from inlay.serve.server import bind
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

        gate.app = app
        assert (await client.get("/health")).status_code == 204
        gate.close("the server is stopping")
        answer = await client.get("/health")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "not_ready")


def test_banner(tokenizer_directory: Any) -> None:
    service, engine = make_service(tokenizer_directory)
    text = banner("http://h:1", "tiny", engine.info, page=True, key=True, start_s=1.25)
    assert "serves tiny at http://h:1 (ready in 1.2 s)" in text
    assert "curl http://h:1/v1/chat/completions -H" in text
    assert 'base_url="http://h:1/v1"' in text
    assert "Chat page" in text
    assert "Chat page" not in banner("u", "n", engine.info, page=False, key=False, start_s=0)
