"""How a server starts and ends: taken ports, missing models, stops, and an engine that dies."""

import os
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.support.server import RunningServer, running_server

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}


def test_port_in_use(tiny_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = RunningServer(tiny_model, port=port)
        assert server.wait(30) == 1
    assert f"address_in_use: port {port} on 127.0.0.1 is in use" in server.log
    assert "Traceback" not in server.log


def test_missing_model(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "nothing")
    assert server.wait(30) == 1
    assert "Traceback" not in server.log
    assert str(tmp_path / "nothing") in server.log


def test_damaged_model(tmp_path: Path, tiny_model: Path) -> None:
    for file in tiny_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    server = RunningServer(tmp_path)
    assert server.wait(60) == 1
    assert "model_file_damaged" in server.log
    assert "model.safetensors" in server.log
    assert "Traceback" not in server.log


def test_start_key_full_queue_and_stop(tiny_model: Path) -> None:
    """One server for several facts: each start takes seconds."""
    scheduler = {"max_running": 1, "max_waiting": 1}
    engine = {"cache": {"pages": 200}, "scheduler": scheduler}
    with running_server(
        tiny_model, api_key="secret", drain_s=1.0, max_body_bytes=5000, engine=engine
    ) as server:
        assert server.ready_s < 15
        with pytest.raises(StopIteration):
            next(line for line in server.log.splitlines() if "Traceback" in line)
        assert httpx.get(server.url + "/health").status_code == 200
        assert httpx.post(server.url + "/v1/chat/completions", json=CHAT).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
            assert client.post("/v1/completions", json={"prompt": "a" * 6000}).status_code == 413
            statuses, retry_after, ended = [], [], []

            def ask() -> None:
                body = {**CHAT, "max_tokens": 1900, "stream": True}
                with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    statuses.append(answer.status_code)
                    retry_after.append(answer.headers.get("retry-after"))
                    ended.append(answer.read().decode()[-400:])

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            deadline_s = time.monotonic() + 10
            while statuses.count(503) < 6 and time.monotonic() < deadline_s:
                time.sleep(0.02)
            assert statuses.count(503) == 6
            assert set(retry_after) - {None}
            asked_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - asked_s < 6
            for thread in threads:
                thread.join()
    # Running requests were told how they ended.
    assert statuses.count(200) + statuses.count(503) == 8
    assert all("[DONE]" in text or '"error"' in text for text in ended)
    assert "Traceback" not in server.log


def test_engine_dies(tiny_model: Path) -> None:
    with running_server(tiny_model, engine={"cache": {"pages": 200}}) as server:
        answers: list[str] = []

        def ask() -> None:
            body = {**CHAT, "max_tokens": 1900, "stream": True}
            answers.append(
                httpx.post(server.url + "/v1/chat/completions", json=body, timeout=30).text
            )

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.gauges()["inlay_requests_running"]:
            time.sleep(0.005)
        os.kill(server.engine_pid(), signal.SIGKILL)
        thread.join()
        assert "engine_died" in answers[0]
        assert server.wait(15) == 1
    assert "engine_died: the server stopped because" in server.log
    assert "SIGKILL" in server.log
    assert "Traceback" not in server.log


def test_stop_while_loading(tiny_model: Path) -> None:
    server = RunningServer(tiny_model)
    while "loading" not in server.log:
        time.sleep(0.01)
    time.sleep(0.3)
    assert server.stop() == 0
    assert "Traceback" not in server.log
