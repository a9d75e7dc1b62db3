"""Tokens, health, metrics, caches, and SGLang's own protocol."""

import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from inlay.core import metrics
from tests.unit.serve.conftest import Api
from tests.unit.serve.test_chat_api import CHAT, HI, WEATHER, events


async def test_tokenize_and_back(api: Api) -> None:
    async with api() as (client, engine):
        answer = (await client.post("/tokenize", json={"prompt": "Grüße 🙂"})).json()
        ids = engine.text.encode("Grüße 🙂")
        assert answer["tokens"] == ids
        assert answer["count"] == len(ids)
        assert answer["max_model_len"] == engine.info.max_context_tokens
        back = (await client.post("/detokenize", json={"tokens": ids})).json()
        assert back == {"prompt": "Grüße 🙂"}
        body = {"messages": HI, "tools": [WEATHER], "return_token_strs": True}
        chat = (await client.post("/tokenize", json=body)).json()
        assert "get_weather" in engine.text.decode(chat["tokens"])
        assert len(chat["token_strs"]) == chat["count"]
        for path, wrong in (
            ("/tokenize", {}),
            ("/tokenize", {"prompt": 5}),
            ("/detokenize", {}),
            ("/detokenize", {"tokens": [10**7]}),
            ("/detokenize", {"tokens": "abc"}),
        ):
            assert (await client.post(path, json=wrong)).status_code == 400
        info = (await client.get("/tokenizer_info")).json()
        assert info["eos_token"] == "<|im_end|>"
        assert "tools" in info["chat_template"]


async def test_health_and_version(api: Api) -> None:
    async with api() as (client, engine):
        answer = await client.get("/health")
        weights = {"loaded_bytes": 600, "total_bytes": 1000}
        assert (answer.status_code, answer.json()) == (200, {"status": "ok", "weights": weights})
        assert "version" in (await client.get("/version")).json()
        for path in ("/reset_prefix_cache", "/flush_cache"):
            assert (await client.post(path, params={"timeout": 60})).status_code == 200
        assert engine.resets == 2
        engine.alive = False
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "engine_died"


async def test_hints_about_sessions(api: Api) -> None:
    async with api() as (client, engine):
        await client.post(CHAT, json={"messages": HI, "session_id": "agent"})
        assert engine.requests[-1].session == "agent"
        paused = (await client.post("/v1/sessions/agent/pause")).json()
        assert (paused["state"], paused["blocks"], paused["blocks_on_device"]) == ("paused", 12, 3)
        resumed = (await client.post("/v1/sessions/agent/resume")).json()
        assert (resumed["state"], resumed["blocks_on_device"]) == ("active", 12)
        assert engine.hints == [("agent", True), ("agent", False)]
        unknown = await client.post("/v1/sessions/other/pause")
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "session_not_found"
        assert "session_id" in unknown.json()["error"]["message"]
        assert (await client.get("/v1/sessions/agent/pause")).status_code == 405


async def test_metrics(api: Api) -> None:
    async with api() as (client, engine):
        await client.post(CHAT, json={"messages": HI})
        await client.post(CHAT, json={"messages": HI, "stream": True})
        await client.post(CHAT, json={"messages": 5})
        text = (await client.get("/metrics")).text
        engine.alive = False
        assert "inlay_engine_up 0.0" in (await client.get("/metrics")).text
    tokens = len(engine.text.encode("Hello there."))
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            found.setdefault(sample.name, {})[labels] = sample.value

    def value(name: str, **labels: str) -> float:
        [got] = [v for k, v in found[name].items() if labels.items() <= dict(k).items()]
        return got

    assert value("inlay_time_to_first_token_seconds_count") == 2
    assert value("inlay_inter_token_latency_seconds_count") == 2 * (tokens - 1)
    assert value("inlay_time_per_output_token_seconds_count") == 2
    assert value("inlay_request_seconds_count") == 2
    assert value("inlay_queue_seconds_sum") == pytest.approx(0.02)
    assert value("inlay_generated_tokens_total") == 2 * tokens
    assert value("inlay_cached_prompt_tokens_total") == 32
    assert value("inlay_requests_finished_total", reason="stop") == 2
    assert value("inlay_http_requests_total", status="200") == 2
    assert value("inlay_http_requests_total", status="400") == 1
    assert value("inlay_pages", state="used") == 10
    assert value("inlay_engine_up") == 1
    labels = {"model_name": "tiny"}
    assert value("vllm:num_requests_running", **labels) == 1
    assert value("vllm:num_requests_waiting", **labels) == 0
    assert value("vllm:kv_cache_usage_perc", **labels) == 0.1
    assert value("vllm:gpu_cache_usage_perc", **labels) == 0.1
    assert value("vllm:time_to_first_token_seconds_count", **labels) == 2
    assert value("vllm:time_per_output_token_seconds_count", **labels) == 2 * (tokens - 1)
    assert value("vllm:prompt_tokens_total", **labels) > 0
    assert value("vllm:generation_tokens_total", **labels) == 2 * tokens
    assert value("vllm:request_success_total", finished_reason="stop", **labels) == 2
    assert value("vllm:gpu_prefix_cache_hits_total", **labels) == 0
    assert value("vllm:gpu_prefix_cache_queries_total", **labels) == 0
    assert value("vllm:cache_config_info", block_size="16", num_gpu_blocks="100") == 1
    assert "vllm:lora_requests_info" in found


def test_metric_definitions_are_sound() -> None:
    every = (*metrics.SERVER_METRICS, *metrics.ENGINE_METRICS)
    names = [metric.name for metric in every] + [a for metric in every for a in metric.aliases]
    assert len(names) == len(set(names))
    for metric in every:
        assert metric.name.startswith("inlay_") and metric.help.endswith(".")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert list(metric.buckets) == sorted(metric.buckets)


def _sglang_body(**fields: Any) -> dict[str, Any]:
    """The body that `sglang.bench_serving --backend sglang` sends."""
    return {
        "text": "some random words",
        "sampling_params": {"temperature": 0.0, "max_new_tokens": 8, "ignore_eos": True},
        "stream": True,
        "lora_path": "",
        "return_logprob": False,
        "return_routed_experts": False,
        "logprob_start_len": -1,
        **fields,
    }


async def test_sglang_generate(api: Api) -> None:
    async with api(says="Grüße aus Köln am Rhein.") as (client, engine):
        found = events((await client.post("/generate", json=_sglang_body())).text)
        whole = (await client.post("/generate", json=_sglang_body(stream=False))).json()
    assert [e["meta_info"]["completion_tokens"] for e in found] == list(range(1, 9))
    assert all(len(a["text"]) <= len(b["text"]) for a, b in zip(found, found[1:], strict=False))
    last = found[-1]
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 8}
    assert last["meta_info"]["prompt_tokens"] == len(engine.requests[0].token_ids)
    assert last["meta_info"]["cached_tokens"] == 16
    assert whole["text"] == last["text"]
    assert whole["output_ids"] == last["output_ids"]
    assert engine.requests[0].params.ignore_eos


async def test_sglang_batches_and_logprobs(api: Api) -> None:
    async with api() as (client, engine):
        body = _sglang_body(
            text=None, input_ids=[[1, 2], [3]], return_logprob=True, top_logprobs_num=2
        )
        body["sampling_params"]["json_schema"] = None
        body["sampling_params"]["stream_interval"] = None
        found = events((await client.post("/generate", json=body)).text)
        whole = (await client.post("/generate", json={**body, "stream": False})).json()
    assert {e["index"] for e in found} == {0, 1}
    assert len(whole) == 2
    meta = whole[0]["meta_info"]
    assert len(meta["output_token_logprobs"]) == meta["completion_tokens"]
    assert meta["output_token_logprobs"][0][:2] == [-0.5, whole[0]["output_ids"][0]]
    assert len(meta["output_top_logprobs"][0]) == 2
    single = _sglang_body(text=None, input_ids=[5, 6, 7])
    async with api() as (client, engine):
        await client.post("/generate", json=single)
        assert engine.requests[0].token_ids == [5, 6, 7]
        for wrong in (
            {"text": "a", "input_ids": [1]},
            {},
            {"input_ids": []},
            {"text": 5},
            {"text": "a", "sampling_params": {"max_new_tokens": -1}},
        ):
            assert (await client.post("/generate", json=wrong)).status_code == 400


async def test_sglang_names_the_weights(api: Api) -> None:
    async with api() as (client, engine):

        async def told() -> list[str]:
            found = events((await client.post("/generate", json=_sglang_body())).text)
            info = (await client.get("/model_info")).json()["weight_version"]
            return [one["meta_info"]["weight_version"] for one in found] + [info]

        assert set(await told()) == {"default"}
        engine.versions = ("v1", "v2")  # new ones came while it ran
        first, *middle, last, now = await told()
        assert (first, set(middle), last, now) == ("v1", {"v1"}, "v2", "v2")


async def test_sglang_info(api: Api) -> None:
    async with api() as (client, engine):
        for path in ("/server_info", "/get_server_info"):
            info = (await client.get(path)).json()
            [state] = info["internal_states"]
            assert state["effective_max_running_requests_per_dp"] > 0
            assert state["memory_usage"]["token_capacity"] == 1600
            assert info["tokenizer_path"] == engine.info.model
        for path in ("/model_info", "/get_model_info"):
            assert (await client.get(path)).json()["is_generation"] is True
    assert json.dumps(info)
