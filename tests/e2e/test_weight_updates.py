"""A server gets new weights while clients use it, and generations pause and go on."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from inlay.transfer import TransferEngine
from inlay.weights import Publisher
from tests.support.server import RunningServer, running_server
from tests.support.tiny_models import make_tiny_model

PROMPT = list(range(5, 60))
CONTEXT = 6144  # tokens


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = tmp_path_factory.mktemp("weights")
    # Large enough that an answer as long as the context takes several seconds: it is interrupted.
    sizes = {
        "max_position_embeddings": CONTEXT, "num_hidden_layers": 4, "hidden_size": 192,
        "intermediate_size": 256, "moe_intermediate_size": 64, "initializer_range": 0.1,
    }  # fmt: skip
    return [make_tiny_model(made / str(seed), seed=seed, **sizes) for seed in (1, 2)]


def engine_of(ranks: int) -> dict[str, Any]:
    return {
        "device": "cpu", "threads": 2, "cache": {"pages": 400},
        "placement": {"tensor_parallel": ranks},
    }  # fmt: skip


@pytest.fixture(scope="module")
def server(models: list[Path], request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    engine = engine_of(getattr(request, "param", 1))
    with running_server(models[0], served_model_name="tiny", engine=engine) as running:
        yield running


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with TransferEngine() as engine, Publisher(engine, "model") as made:
        yield made


def body(max_tokens: int = 16, **more: Any) -> dict[str, Any]:
    return {
        "model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": max_tokens,
        "ignore_eos": True, "return_token_ids": True, **more,
    }  # fmt: skip


def endless() -> dict[str, Any]:
    """As long as the context: no test waits for its end, so none can come too late."""
    return body(max_tokens=CONTEXT - len(PROMPT), stream=True)


def ask(client: httpx.Client, **more: Any) -> dict[str, Any]:
    answer = client.post("/v1/completions", json=body(**more))
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def text(client: httpx.Client, **more: Any) -> str:
    return str(ask(client, **more)["choices"][0]["text"])


def sglang_version(client: httpx.Client) -> str:
    """Of the weights that compute a text, as SGLang's protocol says it."""
    body = {"text": "To be", "sampling_params": {"max_new_tokens": 2}}
    return str(client.post("/generate", json=body).json()["meta_info"]["weight_version"])


def status(*args: str) -> str:
    """What `inlay status` says."""
    command = [sys.executable, "-m", "inlay", "status", *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("server", "ranks"), [(2, 2), (1, 1)], indirect=["server"], ids=["two ranks", "alone"]
)
def test_no_request_fails_while_weights_are_swapped(
    server: RunningServer, ranks: int, models: list[Path], publisher: Publisher
) -> None:
    publisher.publish("v2", models[1], piece_bytes=4096)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        before = text(client)
        assert sglang_version(client) == "default"
        texts: list[str] = []
        failures: list[Exception] = []
        stop = threading.Event()

        def load() -> None:
            with httpx.Client(base_url=server.url, timeout=60) as own:
                while not stop.is_set():
                    try:
                        texts.append(text(own))
                    except Exception as error:
                        failures.append(error)
                        return

        clients = [threading.Thread(target=load) for _ in range(3)]
        for one in clients:
            one.start()
        update = {"publishers": [publisher.address]}
        answer = client.post("/v1/weights/update", json=update)
        assert answer.status_code == 200, answer.text
        assert answer.json()["version"] == "v2" and answer.json()["made_bytes"] > 0
        after = ask(client)
        stop.set()
        for one in clients:
            one.join()
        assert not failures
        new = after["choices"][0]["text"]
        assert new != before and set(texts) <= {before, new}
        assert client.get("/v1/weights").json()["version"] == "v2"
        assert sglang_version(client) == "v2"
        assert client.get("/model_info").json()["weight_version"] == "v2"
        head, _, row = status(server.url).splitlines()
        assert head == f"tiny is served at {server.url}"
        assert row.split()[:5] == ["engine", "ready", "both", "0", "v2"]
        told = json.loads(status(server.url, "--json"))
        assert [one["weight_version"] for one in told["instances"]] == ["v2"]
        again = client.post("/v1/weights/update", json=update)
        assert again.status_code == 409 and "is served already" in again.text
        metrics = client.get("/metrics").text
        assert 'inlay_weight_updates_total{outcome="done"} 1.0' in metrics
        assert 'inlay_weight_updates_total{outcome="weights_conflict"} 1.0' in metrics
        assert "inlay_weight_update_seconds_count 1.0" in metrics
        assert "inlay_weight_pulled_bytes_total 0.0" not in metrics
        publisher.publish("v3", models[0], piece_bytes=4096)
        assert client.post("/v1/weights/update", json=update).json()["version"] == "v3"
        assert text(client) == before
    engine = engine_of(ranks)
    with running_server(models[1], served_model_name="tiny", engine=engine) as other:
        with httpx.Client(base_url=other.url, timeout=60) as client:
            assert text(client) == new, "not the text of these weights"


def test_what_does_not_fit_is_refused(
    server: RunningServer, publisher: Publisher, tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other", num_hidden_layers=1)
    publisher.publish("v2", other)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        before = text(client)
        answer = client.post("/v1/weights/update", json={"publishers": [publisher.address]})
        assert answer.status_code == 400 and "layers 1 instead of 4" in answer.text
        answer = client.post("/v1/weights/update", json={"publishers": ["nowhere"]})
        assert answer.status_code == 400 and "'nowhere' is no host:port" in answer.text
        answer = client.post("/v1/weights/update", json={})
        assert answer.status_code == 400 and "say where the weights come from" in answer.text
        answer = client.post("/v1/rollouts/resume", json={"handles": ["cmpl-strange@"]})
        assert answer.status_code == 400 and "is running here" in answer.text
        assert text(client) == before


def test_a_generation_pauses_and_goes_on(server: RunningServer, models: list[Path]) -> None:
    with (
        httpx.Client(base_url=server.url, timeout=60) as client,
        httpx.Client(base_url=server.url, timeout=60) as control,
    ):
        with client.stream("POST", "/v1/completions", json=endless()) as stream:
            events = (json.loads(it[6:]) for it in stream.iter_lines() if it.startswith("data: {"))
            event = next(events)
            seen = list(event["choices"][0]["token_ids"])
            told = control.post("/v1/rollouts/pause", json={"request_ids": [event["id"]]})
            assert told.status_code == 200, told.text
            (paused,) = told.json()["data"]
            assert paused["id"] == event["id"]
            done = paused["choices"][0]["token_ids"]
            while len(seen) < len(done):
                seen += next(events)["choices"][0]["token_ids"]
            assert seen == done
            # Others are served, by new weights, too.
            swapped = control.post(
                "/v1/weights/update", json={"directory": str(models[0]), "version": "same"}
            )
            assert swapped.status_code == 200, swapped.text
            assert control.get("/v1/weights").json()["version"] == "same"
            for handles in ([f"{event['id']}@same"], [paused["kv_handle"], f"{event['id']}@same"]):
                refused = control.post("/v1/rollouts/resume", json={"handles": handles})
                assert refused.status_code == 409, refused.text
                assert f"@same is paused as {paused['kv_handle']}" in refused.text
            resumed = control.post(
                "/v1/rollouts/resume", json={"handles": [paused["kv_handle"]], "kv": "recompute"}
            )
            assert resumed.json()["data"] == [event["id"]]
            again = control.post(
                "/v1/rollouts/resume", json={"handles": [paused["kv_handle"]], "kv": "recompute"}
            )
            assert again.status_code == 409 and "is not paused" in again.text
            assert again.json()["error"]["code"] == "not_paused"
            while len(seen) < len(done) + 100:
                seen += next(events)["choices"][0]["token_ids"]
        whole = ask(client, max_tokens=len(seen))["choices"][0]["token_ids"]
        assert seen == whole, "the weights are equal, so is the text"


def test_a_watcher_tells_the_server(
    server: RunningServer, models: list[Path], publisher: Publisher, tmp_path: Path
) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        before = text(client)
        command = [sys.executable, "-m", "inlay", "weights", "watch", publisher.address]
        command += ["--to", str(tmp_path / "versions"), "--server", server.url, "--every", "0.1"]
        stranger = tmp_path / "versions" / "other"
        stranger.mkdir(parents=True)
        with subprocess.Popen(
            [*command, "--keep", "1", "--versions", "2"], stdout=subprocess.PIPE, text=True
        ) as watch:
            assert watch.stdout is not None
            publisher.publish("a", models[1])
            assert watch.stdout.readline().startswith("model a: ")
            publisher.publish("b", models[0])
            assert ", " in watch.stdout.readline()
            assert watch.wait(30) == 0
        assert client.get("/v1/weights").json()["version"] == "b"
        assert text(client) == before
        assert (tmp_path / "versions" / "current").resolve().name == "b"
        assert not (tmp_path / "versions" / "a").exists()
        assert stranger.is_dir(), "it is no version of this watcher"


@pytest.mark.parametrize("version", ["..", ".", "/{precious}", "../precious"])
def test_a_version_leads_nowhere_else(
    server: RunningServer, publisher: Publisher, tmp_path: Path, version: str
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    named = str(precious) if version == "/{precious}" else version
    source = {"publishers": [publisher.address], "version": named}
    with httpx.Client(base_url=server.url, timeout=60) as client:
        answer = client.post("/v1/weights/update", json=source)
        assert answer.status_code == 400 and "a version has 1 to 64" in answer.text
        assert client.get("/health").status_code == 200
    assert precious.is_dir()


def test_what_is_asked_wrongly_is_said(server: RunningServer) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        gone = {"publishers": ["127.0.0.1:1"], "version": "v"}
        answer = client.post("/v1/weights/update", json=gone)
        assert answer.status_code == 502 and "is a publisher running" in answer.text
        answer = client.post("/v1/rollouts/resume", json={"handles": ["cmpl-1"]})
        assert answer.status_code == 400 and "'cmpl-1' is no handle" in answer.text


def test_commands_of_the_guide(models: list[Path], tmp_path: Path) -> None:
    inlay = [sys.executable, "-m", "inlay", "weights"]
    publish = [*inlay, "publish", str(models[0]), "--version", "step-100", "--peers", "1"]
    with subprocess.Popen(
        [*publish, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("model step-100 at 127.0.0.1:"), line
        address = line.split()[3].rstrip(":")
        target = tmp_path / "pulled"
        pulled = subprocess.run(
            [*inlay, "pull", address, "--to", str(target)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "has model step-100" in pulled.stdout
        assert process.wait(30) == 0
        assert (target / "config.json").read_bytes() == (models[0] / "config.json").read_bytes()
