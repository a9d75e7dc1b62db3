"""How a server starts and ends: taken ports, missing models, stops, and an engine that dies."""

import math
import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.conftest import ENDLESS, PAGES
from tests.support.server import RunningServer, running_server
from tests.support.tiny_models import make_tiny_model

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
    engine = {"cache": {"pages": PAGES}, "scheduler": scheduler}
    with running_server(
        tiny_model, api_key="secret", drain_s=1.0, max_body_bytes=5000, engine=engine
    ) as server:
        assert httpx.get(server.url + "/health").status_code == 200
        assert httpx.post(server.url + "/v1/chat/completions", json=CHAT).status_code == 401
        headers = {"Authorization": "Bearer secret"}
        with httpx.Client(base_url=server.url, headers=headers, timeout=30) as client:
            assert client.post("/v1/completions", json={"prompt": "a" * 6000}).status_code == 413
            statuses, retry_after, ended = [], [], []

            def ask() -> None:
                body = {**CHAT, "max_tokens": ENDLESS, "stream": True}
                with client.stream("POST", "/v1/chat/completions", json=body) as answer:
                    statuses.append(answer.status_code)
                    retry_after.append(answer.headers.get("retry-after"))
                    ended.append(answer.read().decode()[-400:])

            threads = [threading.Thread(target=ask) for _ in range(8)]
            for thread in threads:
                thread.start()
            deadline_s = time.monotonic() + 60
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
    with running_server(tiny_model, engine={"cache": {"pages": PAGES}}) as server:
        answers: list[str] = []

        def ask() -> None:
            body = {**CHAT, "max_tokens": ENDLESS, "stream": True}
            answers.append(
                httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).text
            )

        thread = threading.Thread(target=ask)
        thread.start()
        while not server.gauges()["inlay_requests_running"]:
            assert thread.is_alive(), answers
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


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose experts take a while: wide, and converted from float16."""
    return make_tiny_model(
        tmp_path_factory.mktemp("slow"),
        dtype="float16",
        hidden_size=512,
        moe_intermediate_size=512,
        num_experts=64,
    )


SLOWLY = {"weight_format": "int4", "threads": 1, "cache": {"pages": 200}}


def test_requests_while_experts_load(slow_model: Path) -> None:
    body = {**CHAT, "max_tokens": 16, "temperature": 0}
    with running_server(slow_model, engine=SLOWLY) as server:
        texts = [httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()]
        deadline_s = time.monotonic() + 60
        while (
            server.gauges()["inlay_weights_loaded_bytes"] < server.gauges()["inlay_weights_bytes"]
        ):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        weights = httpx.get(server.url + "/health").json()["weights"]
        assert weights["loaded_bytes"] == weights["total_bytes"] > 50_000_000
        httpx.post(server.url + "/reset_prefix_cache")
        texts.append(httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).json())
        log = server.log
        assert server.stop() == 0
    assert len({text["choices"][0]["message"]["content"] for text in texts}) == 1
    assert re.search(r"  [\d.]+ \w+ of [\d.]+ MiB of weights are loaded; the others follow", log)
    assert re.search(r"\n[\d.]+ MiB of [\d.]+ MiB of weights are loaded, in .* GB/s\)", log)


def test_an_expert_that_is_damaged(slow_model: Path, tmp_path: Path) -> None:
    """The last one: the server is ready before it comes."""
    for file in slow_model.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.experts.63.up_proj.weight"][0, 0] = math.inf
    save_file(tensors, tmp_path / "model.safetensors")
    server = RunningServer(tmp_path, engine=SLOWLY)
    assert server.wait(90) == 1
    assert "expert 63 of layer 1 cannot be packed" in server.log
    assert "the file is damaged" in server.log
    assert "Traceback" not in server.log
    whole = RunningServer(tmp_path, engine=SLOWLY | {"load": "whole"})
    assert whole.wait(90) == 1
    assert "model_file_damaged: expert 63 of layer 1 cannot be packed" in whole.log


def test_stop_while_experts_load(slow_model: Path) -> None:
    with running_server(slow_model, engine=SLOWLY) as server:
        asked_s = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - asked_s < 6
    assert "Traceback" not in server.log
