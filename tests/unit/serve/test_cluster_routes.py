"""The HTTP side of a dispatcher: health, decisions, metrics, refusals."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from inlay.cluster.control import Roster
from inlay.cluster.status import ClusterStatus
from inlay.core import cluster_metrics
from inlay.core.instance_messages import LoadReport, StepSample
from inlay.models.text import Text
from inlay.serve.app import create_app
from inlay.serve.cluster_metrics import ClusterCollector
from inlay.serve.cluster_routes import ClusterRoutes
from inlay.serve.config import ServeConfig
from inlay.serve.service import Service
from tests.unit.cluster.dispatching import Cluster, Refusing

BODY = {"prompt": [1, 2, 3] * 10, "max_tokens": 4, "temperature": 0}


@dataclasses.dataclass
class Front:
    cluster: Cluster
    client: httpx.AsyncClient


@pytest.fixture
async def front(tokenizer_directory: Path) -> AsyncIterator[Front]:
    cluster = Cluster(instance_wait_s=0.01)
    await cluster.add("a")
    await cluster.add("b")
    config = ServeConfig(page=False)
    text = Text.load(tokenizer_directory)
    service = Service(
        cluster.dispatcher,
        text,
        config,
        model_name="m",
        clock=cluster.clock,
    )
    service.metrics.add(ClusterCollector(cluster.dispatcher, cluster.clock))
    app = create_app(service, config, ClusterRoutes(cluster.dispatcher, cluster.clock))
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://inlay") as client:
        yield Front(cluster, client)
    cluster.close()


async def test_health_has_the_instances(front: Front) -> None:
    answer = await front.client.get("/health")
    assert answer.status_code == 200
    names = [(one["name"], one["state"], one["role"]) for one in answer.json()["instances"]]
    assert names == [("a", "ready", "both"), ("b", "ready", "both")]
    assert answer.json()["instances"][0]["load"]["pages_total"] == 100
    front.cluster.states = {"a": "starting", "b": "draining"}
    front.cluster.follow()
    answer = await front.client.get("/health")
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "5"
    assert [one["state"] for one in answer.json()["instances"]] == ["starting", "draining"]
    refused = await front.client.post("/v1/completions", json=BODY)
    assert refused.status_code == 503
    assert "a is starting, b is draining" in refused.json()["error"]["message"]
    assert refused.json()["error"]["code"] == "no_instance"


async def test_decisions_in_both_forms(front: Front) -> None:
    for name in ("first", "second"):
        answer = await front.client.post(
            "/v1/completions", json=BODY, headers={"X-Request-Id": name}
        )
        assert answer.status_code == 200
    entries = (await front.client.get("/debug/decisions")).json()["decisions"]
    assert ["second" in entries[0]["request"], "first" in entries[1]["request"]] == [True, True]
    assert {row["instance"] for row in entries[0]["candidates"]} == {"a", "b"}
    found = (await front.client.get("/debug/decisions?request=first&limit=5")).json()["decisions"]
    assert len(found) == 1
    text = (await front.client.get("/debug/decisions?format=text")).text
    assert "round_robin: a" in text and "30 tokens" in text and "cost" in text
    front.cluster.chooser._admission = Refusing("too much", 6.3)
    answer = await front.client.post("/v1/completions", json=BODY)
    assert answer.status_code == 429 and answer.headers["Retry-After"] == "7"
    assert answer.json()["error"] == {
        "message": "too much",
        "type": "rate_limit_error",
        "param": None,
        "code": "not_admitted",
    }
    text = (await front.client.get("/debug/decisions?format=text&limit=1")).text
    assert "refused: too much (come back in 6.3 s)" in text
    assert (await front.client.get("/debug/decisions?limit=0")).status_code == 400


async def test_metrics_count_decisions(front: Front) -> None:
    await front.client.post("/v1/completions", json=BODY)
    text = (await front.client.get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for metric in vars(cluster_metrics).values():
        if hasattr(metric, "kind"):
            assert families[metric.name].type == metric.kind, metric.name
    (sample,) = families[cluster_metrics.DECISIONS.name].samples
    assert sample.labels == {"policy": "round_robin", "outcome": "whole"} and sample.value == 1
    ready = families[cluster_metrics.INSTANCE_READY.name].samples
    assert {sample.labels["instance_name"]: sample.value for sample in ready} == {"a": 1, "b": 1}
    assert families["inlay_requests_running"].samples[0].value == 2


async def test_the_id_is_in_the_answer(front: Front) -> None:
    answer = await front.client.post("/v1/completions", json=BODY, headers={"X-Request-Id": "me"})
    assert answer.headers["X-Request-Id"] == "me" and "me" in answer.json()["id"]
    answer = await front.client.post("/v1/completions", json=BODY)
    assert answer.headers["X-Request-Id"] == answer.json()["id"]
    sent = [name for one in front.cluster.stand_ins.values() for name in one.requests]
    assert any(name.endswith(answer.json()["id"]) for name in sent)


async def test_the_status_has_instances_decisions_and_what_clients_had(front: Front) -> None:
    cluster = front.cluster
    await front.client.post("/v1/completions", json=BODY)
    sample = StepSample(100, 0, 0, 0, 0.5)
    cluster.stand_ins["a"].tell(
        LoadReport(
            run_id="a-1",
            waiting=2,
            running=1,
            receiving=0,
            prefill_tokens=30,
            context_tokens=7,
            pages_total=100,
            pages_free=60,
            pages_cached=30,
            samples=(sample,),
        )  # fmt: skip
    )
    while not (load := cluster.instances.find("a").report) or not load.samples:  # type: ignore[union-attr]
        await asyncio.sleep(0)
    answer = await front.client.get("/cluster/status")
    status = msgspec.json.decode(answer.content, type=ClusterStatus)
    first, second = status.instances
    assert (first.name, first.state, first.role, second.name) == ("a", "ready", "both", "b")
    assert (first.waiting, first.prefill_tokens, first.pages_used) == (2, 30, 10)
    assert (first.prefill_tokens_per_s, first.decode_step_s) == (200.0, None)
    assert first.busy[-1] == 3 and first.hit_tokens["host"] == 2
    assert status.traffic.requests_total == 1 and status.classes[0].finished == 1
    (decision,) = status.decisions
    assert (decision.outcome, decision.decode, decision.measured_ttft_s) == ("whole", "a", 0.0)
    # Half a second long it is the same, then another one.
    cluster.stand_ins["b"].close()
    while cluster.instances.find("b").info:  # type: ignore[union-attr]
        await asyncio.sleep(0)
    assert (await front.client.get("/cluster/status")).content == answer.content
    cluster.clock.advance(1.0)
    later = (await front.client.get("/cluster/status")).json()
    assert later["instances"][1]["state"] != "ready" and later["decisions"][0]["age_s"] == 1.0


async def test_the_status_of_a_cluster_without_instances(front: Front) -> None:
    front.cluster.instances.follow(Roster(number=2, members=()))
    status = (await front.client.get("/cluster/status")).json()
    assert status["instances"] == [] and status["index"]["blocks"] == 0
