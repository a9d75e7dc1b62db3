"""New weights for a deployment under load, a kill in the middle of it, and paused generations."""

import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from inlay.transfer import TransferEngine
from inlay.weights import Publisher
from tests.integration.cluster.askers import Body, answer
from tests.support.deployments import RunningDeployment, running_deployment, wait_until
from tests.support.server import running_server
from tests.support.tiny_models import make_tiny_model

ENGINE: dict[str, Any] = {"device": "cpu", "threads": 1}
FILE = """
name = "weights"
model = "{model}"

[engine]
device = "cpu"
threads = 1
cache.pages = 500

[instances.both]
count = 2

[instances.prefill]
role = "prefill"

[instances.decode]
role = "decode"

[dispatcher]
port = 0
policy = "round_robin"  # which divides all that can be divided

[store.nodes.n0]
memory = "64MiB"
"""
PROMPT = list(range(5, 60))
NAMES = {"both-0", "both-1", "prefill-0", "decode-0"}
SOON_S = 90.0  # a process that starts imports for seconds, with a share of two cores
CONTEXT = 6144  # tokens
MORE = 100  # tokens that are read of a text that goes on
# Large enough that an answer as long as the context takes several seconds: it is interrupted.
SIZES = {
    "max_position_embeddings": CONTEXT, "num_hidden_layers": 4, "hidden_size": 192,
    "intermediate_size": 256, "moe_intermediate_size": 64, "initializer_range": 0.1,
}  # fmt: skip


def questions() -> list[Body]:
    """Prompts, every other behind the same stem; a third is sampled, with seeds."""
    draw = random.Random(3)
    stem = draw.choices(range(5, 200), k=64)
    return [
        {
            "prompt": [*(stem if number % 2 else ()), *draw.choices(range(5, 200), k=24)],
            "max_tokens": draw.randint(8, 40),
            "ignore_eos": True,
            "stream": True,
            **({"temperature": 0} if number % 3 else {"temperature": 0.9, "seed": number}),
        }
        for number in range(8)
    ]


class Deployed:
    """The deployment, and what either weights answer.

    Attributes:
        models: two sets of weights; the first ones are those that it starts with.
        texts: of either, to all questions.
    """

    def __init__(self, running: RunningDeployment, models: list[Path]) -> None:
        self.running = running
        self.models = models
        self.client = httpx.Client(base_url=running.url, timeout=120)
        assert set(self.shown.values()) == {""}
        with running_server(models[1], engine=ENGINE) as other:
            new = [answer(other.url, body) for body in questions()]
        self.texts = [[answer(running.url, body) for body in questions()], new]
        assert all(one != two for one, two in zip(*self.texts, strict=True))

    @property
    def versions(self) -> dict[str, str]:
        told = self.client.get("/v1/weights").json()
        return {one["name"]: one["version"] for one in told["instances"]}

    @property
    def shown(self) -> dict[str, str]:
        """What `inlay status --json` says of the instances."""
        processes = json.loads(self.running.command("status", "--json"))["processes"]
        kinds = (one for one in processes if one["kind"] == "instance")
        return {one["name"]: one["weight_version"] for one in kinds}

    def all_have(self, version: str) -> bool:
        return self.versions == dict.fromkeys(NAMES, version)

    def update(self, **body: Any) -> httpx.Response:
        return self.client.post("/v1/weights/update", json=body)

    def settle(self, version: str, weights: int) -> None:
        """All have these weights, whatever a test before left."""
        body = {"directory": str(self.models[weights]), "version": version}
        told = self.update(**body)
        assert told.status_code == 200, told.text
        wait_until(lambda: self.all_have(version), SOON_S, f"all have {version}")

    @contextmanager
    def asked(self) -> Iterator[list[tuple[int, float, str]]]:
        """Clients ask until the end; yields their answers: question, when it was asked, text.

        In the end none of them has failed, and each is that of one set of weights.
        """
        answers: list[tuple[int, float, str]] = []
        failures: list[Exception] = []
        stop = threading.Event()

        def ask(client: int) -> None:
            draw = random.Random(client)
            while not stop.is_set() and not failures:
                number, began_s = draw.randrange(8), time.monotonic()
                try:
                    text = answer(self.running.url, questions()[number])
                except Exception as error:
                    failures.append(error)
                else:
                    answers.append((number, began_s, text))

        clients = [threading.Thread(target=ask, args=(client,)) for client in range(3)]
        for one in clients:
            one.start()
        try:
            wait_until(lambda: len(answers) > 8 or failures, 60, "answers come")
            yield answers
            enough = len(answers) + 8
            wait_until(lambda: len(answers) > enough or failures, 60, "answers come")
        finally:
            stop.set()
            for one in clients:
                one.join()
        assert not failures, f"{failures[0]!r}\n{self.running.logs()}"
        old, new = self.texts
        wrong = [one for one in answers if one[2] not in (old[one[0]], new[one[0]])]
        assert not wrong, f"a text of no weights: {wrong[0]}"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    made = tmp_path_factory.mktemp("weights")
    models = [make_tiny_model(made / str(seed), seed=seed, **SIZES) for seed in (1, 2)]
    with running_deployment(made, FILE.format(model=models[0])) as running:
        found = Deployed(running, models)
        try:
            yield found
        finally:
            found.client.close()


def test_no_request_fails_while_all_instances_get_new_weights(deployed: Deployed) -> None:
    with (
        TransferEngine() as engine,
        Publisher(engine, "model") as publisher,
        deployed.asked() as answers,
    ):
        publisher.publish("v2", deployed.models[1], piece_bytes=1 << 16)
        told = deployed.update(publishers=[publisher.address])
        updated_s = time.monotonic()
        assert told.status_code == 200, told.text
        body = told.json()
        assert body["version"] == "v2" and sum(body["taken_bytes"].values()) > 0
        assert {one["name"]: one["version"] for one in body["instances"]} == dict.fromkeys(
            NAMES, "v2"
        )
        assert deployed.client.get("/v1/weights").json()["version"] == "v2"
        again = deployed.update(publishers=[publisher.address])
        assert again.status_code == 200, again.text
        assert [one["load_s"] for one in again.json()["instances"]] == [0.0] * 4
    later = [one for one in answers if one[1] > updated_s]
    assert later, "nothing was asked after the update"
    for number, _, text in later:
        assert text == deployed.texts[1][number], "not the text of the new weights"
    metrics = deployed.client.get("/metrics").text
    assert 'inlay_instance_weights{instance_name="decode-0",version="v2"} 1.0' in metrics
    assert 'inlay_weight_updates_total{outcome="done"} 2.0' in metrics
    status = deployed.client.get("/cluster/status").json()
    assert {one["weight_version"] for one in status["instances"]} == {"v2"}
    assert any(path["prompts"] for path in status["paths"]), "nothing was divided"


def test_a_model_that_does_not_fit_changes_nothing(deployed: Deployed, tmp_path: Path) -> None:
    before = deployed.versions
    other = make_tiny_model(tmp_path / "other", num_hidden_layers=1)
    told = deployed.update(directory=str(other), version="other")
    assert told.status_code == 400 and "layers 1 instead of 4" in told.text
    assert deployed.versions == before


def test_a_kill_in_the_middle_of_an_update(deployed: Deployed) -> None:
    """The others serve on; the instance that comes back follows them, and a second update all."""
    deployed.settle("before", 1)
    victim = deployed.running.processes()["decode-0"]
    with deployed.asked():
        # It stands still, so the update is certainly not over when it is killed.
        os.kill(victim.pid, signal.SIGSTOP)
        told: list[httpx.Response] = []
        body = {"directory": str(deployed.models[0]), "version": "v3"}
        updating = threading.Thread(target=lambda: told.append(deployed.update(**body)))
        updating.start()
        wait_until(lambda: "v3" in deployed.versions.values(), 60, "one has new weights")
        mixed = deployed.shown
        assert mixed["decode-0"] == "before" and "v3" in mixed.values(), mixed
        os.kill(victim.pid, signal.SIGKILL)
        updating.join()
        report = told[0].json()
        having = {one["name"] for one in report["instances"] if one["version"] == "v3"}
        assert having == NAMES - {"decode-0"}, told[0].text
        if told[0].status_code != 200:  # else it was known to be lost when the update began
            assert told[0].status_code == 502
            assert report["error"]["code"] == "weights_partial"
            (lost,) = [one for one in report["instances"] if "error" in one]
            assert lost["name"] == "decode-0" and lost["code"] == "engine_died"
        wait_until(lambda: deployed.all_have("v3"), SOON_S, "it has what the others have")
        told_again = deployed.update(directory=str(deployed.models[1]), version="v4")
        assert told_again.status_code == 200, told_again.text
        assert deployed.all_have("v4") and deployed.shown == dict.fromkeys(NAMES, "v4")
        table = deployed.running.command("status").splitlines()
        row = next(line for line in table if line.startswith("decode-0 "))
        assert row.split()[-1] == "v4"
    texts = [answer(deployed.running.url, body) for body in questions()]
    assert texts == deployed.texts[1]


class Generation:
    """An answer as long as the context, read by a client of its own that leaves before its end."""

    def __init__(self, url: str) -> None:
        self.id = ""
        self.token_ids: list[int] = []
        self.ended = False
        self._url = url
        self._leaving = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self.first(10)

    def _read(self) -> None:
        body = wanted(PROMPT, CONTEXT - len(PROMPT)) | {"stream": True}
        with httpx.stream("POST", f"{self._url}/v1/completions", json=body, timeout=120) as got:
            for line in got.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    assert "error" not in event, event
                    self.id = event["id"]
                    for choice in event["choices"]:
                        self.token_ids += choice["token_ids"] or []
                if self._leaving:
                    return
        self.ended = True

    def first(self, count: int) -> list[int]:
        """So many tokens, when they are there."""
        wait_until(lambda: len(self.token_ids) >= count, 60, f"{count} tokens")
        return self.token_ids[:count]

    def leave(self) -> None:
        """Its client leaves while it goes on."""
        self._leaving = True
        self._thread.join(60)
        assert not self._thread.is_alive() and not self.ended


def wanted(prompt: list[int], count: int) -> Body:
    return {
        "prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip


def holders(deployed: Deployed) -> list[str]:
    """Instances that have a request."""
    health = deployed.client.get("/health").json()
    return [str(one["name"]) for one in health["instances"] if one.get("requests")]


def pause(deployed: Deployed, one: Generation) -> dict[str, Any]:
    told = deployed.client.post("/v1/rollouts/pause", json={"request_ids": [one.id]})
    assert told.status_code == 200, told.text
    (paused,) = told.json()["data"]
    assert paused["id"] == one.id
    return dict(paused)


def resume(deployed: Deployed, paused: dict[str, Any], kv: str) -> None:
    body = {"handles": [paused["kv_handle"]], "kv": kv}
    told = deployed.client.post("/v1/rollouts/resume", json=body)
    assert told.json() == {"object": "list", "data": [paused["id"]]}


def continued(deployed: Deployed, begun: list[int], count: int) -> list[int]:
    """Tokens that a new request gets behind these."""
    told = deployed.client.post("/v1/completions", json=wanted(PROMPT + begun, count))
    assert told.status_code == 200, told.text
    return list(told.json()["choices"][0]["token_ids"])


def test_a_paused_generation_goes_on_at_another_instance(deployed: Deployed) -> None:
    one = Generation(deployed.running.url)
    (holder,) = holders(deployed)
    paused = pause(deployed, one)
    begun = paused["choices"][0]["token_ids"]
    os.kill(deployed.running.processes()[holder].pid, signal.SIGKILL)
    wait_until(lambda: holder not in deployed.versions, 60, "it is gone")
    assert one.first(len(begun)) == one.token_ids == begun and not one.ended
    resume(deployed, paused, "keep")
    count = len(begun) + MORE
    assert one.first(count) == continued(deployed, [], count)
    one.leave()
    wait_until(lambda: not holders(deployed), 60, "nothing is running")
    told = deployed.client.post("/v1/rollouts/resume", json={"handles": [paused["kv_handle"]]})
    assert told.status_code == 400 and "is running here" in told.text
    wait_until(lambda: deployed.versions.keys() == NAMES, SOON_S, "it is back")


def test_paused_generations_go_on_by_new_weights(deployed: Deployed) -> None:
    deployed.settle("old", 0)
    both: list[Generation] = []
    handles: list[dict[str, Any]] = []
    for _ in range(2):
        both.append(Generation(deployed.running.url))
        handles.append(pause(deployed, both[-1]))
    assert {one["weight_version"] for one in handles} == {"old"}
    deployed.settle("new", 1)
    for paused, kv in zip(handles, ("keep", "recompute"), strict=True):
        resume(deployed, paused, kv)
    continuations = []
    for one, paused in zip(both, handles, strict=True):
        begun = paused["choices"][0]["token_ids"]
        text = one.first(len(begun) + MORE)
        one.leave()
        assert text[: len(begun)] == begun
        continuations.append(text[len(begun) :] == continued(deployed, begun, MORE))
    assert continuations == [False, True], "KV of the old weights is kept, and is not"
