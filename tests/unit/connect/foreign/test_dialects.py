"""What engines are asked, and what is read out of their answers."""

import msgspec
import pytest

from inlay.connect.foreign.dialect import ChoiceRequest
from inlay.connect.foreign.event_feed import EventSource
from inlay.connect.foreign.gauges import Gauges, read_samples
from inlay.connect.foreign.sampling import sampling_fields
from inlay.connect.foreign.sglang import Sglang
from inlay.connect.foreign.vllm import Vllm, _seen_from_here
from inlay.core.errors import ConfigError, EndpointError, EngineDiedError, EngineError, RequestError
from inlay.core.foreign import ForeignEngine
from inlay.core.messages import SamplingParams, Structure, TokenLogprob

VLLM_METRICS = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:cache_config_info{block_size="32",cache_dtype="auto",engine="0",num_gpu_blocks="512"} 1.0
process_start_time_seconds 1.79564457135e+09
"""
SGLANG_METRICS = """\
sglang:num_running_reqs{model_name="m",tp_rank="0"} 5.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 1.0
sglang:token_usage{model_name="m",tp_rank="0"} 0.5
sglang:max_total_num_tokens{model_name="m"} 4096.0
"""


class Http:
    """An engine's answers by path."""

    url = "http://host:1"

    def __init__(self, answers):
        self.answers = answers

    async def text(self, path, timeout_s):
        return await self.json(path, timeout_s)

    async def json(self, path, timeout_s, body=None):
        if path not in self.answers:
            raise EndpointError(f"{path} is not there", 404)
        return self.answers[path]


def choice(**fields):
    params = SamplingParams(max_tokens=5, seed=7, **fields)
    return ChoiceRequest(request_id="r-0", model="m", tokens=[1, 2], params=params, salt="pepper")


def test_gauges():
    assert Vllm().gauges(VLLM_METRICS) == Gauges(
        running=4, waiting=2, usage=0.25, cache_tokens=512 * 32, started_s=1.79564457135e9
    )
    assert Sglang().gauges(SGLANG_METRICS) == Gauges(
        running=5, waiting=1, usage=0.5, cache_tokens=4096
    )
    assert Vllm().gauges("") == Sglang().gauges("nothing of it 1\n\n{") == Gauges()


def test_samples_of_odd_texts():
    names = frozenset({"a"})
    text = 'a 1\na{b="x } \\" y",c="z"} 2\na{} 3\nab 4\na\na{b="x"}\na notanumber\n'
    found = read_samples(text, names)["a"]
    assert found == [({}, 1.0), ({"b": 'x } \\" y', "c": "z"}, 2.0), ({}, 3.0)]


def test_vllm_is_asked():
    body = Vllm().body(choice(temperature=0.5, stop=("x",), logit_bias={3: 1.0}, logprobs=2))
    expected = {
        "model": "m", "prompt": [1, 2], "stream": True, "return_token_ids": True,
        "max_tokens": 5, "seed": 7, "temperature": 0.5, "stop": ["x"], "logit_bias": {"3": 1.0},
        "logprobs": 2, "return_tokens_as_token_ids": True, "cache_salt": "pepper",
    }  # fmt: skip
    assert expected.items() <= body.items()


def test_sglang_is_asked():
    asked = choice(temperature=0.5, stop=("x",), logit_bias={3: 1.0}, logprobs=2, min_tokens=1)
    body = Sglang().body(asked)
    sampling = body.pop("sampling_params")
    assert body == {
        "rid": "r-0", "input_ids": [1, 2], "stream": True, "return_logprob": True,
        "top_logprobs_num": 2, "cache_salt": "pepper",
    }  # fmt: skip
    expected = {
        "max_new_tokens": 5, "min_new_tokens": 1, "sampling_seed": 7, "temperature": 0.5,
        "top_k": -1, "stop": ["x"], "logit_bias": {"3": 1.0},
    }  # fmt: skip
    assert expected.items() <= sampling.items()
    assert sampling_fields("sglang", SamplingParams(seed=(5 << 31) + 3))["sampling_seed"] == 3


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_every_parameter_is_passed_on(engine):
    """Those that are not are asked for elsewhere, or refused."""
    elsewhere = {"n", "logprobs", "prompt_logprobs", "structure"}
    fields = {one.name for one in msgspec.structs.fields(SamplingParams)} - elsewhere
    params = SamplingParams(max_tokens=1, seed=1, logit_bias={1: 1.0})
    assert len(sampling_fields(engine, params)) == len(fields)


@pytest.mark.parametrize(
    ("structure", "vllm", "sglang"),
    [
        (Structure("json_object"), {"json_object": True}, {"json_schema": '{"type": "object"}'}),
        (Structure("json_schema", '{"a":1}'), {"json": {"a": 1}}, {"json_schema": '{"a":1}'}),
        (Structure("regex", "a+"), {"regex": "a+"}, {"regex": "a+"}),
        (Structure("choice", '["a.b","c"]'), {"choice": ["a.b", "c"]}, {"regex": "(a\\.b|c)"}),
        (Structure("lark", "start: x"), {"grammar": "start: x"}, None),
    ],
)
def test_grammars(structure, vllm, sglang):
    asked = choice(structure=structure)
    assert Vllm().body(asked)["structured_outputs"] == vllm
    if sglang is None:
        with pytest.raises(RequestError):
            Sglang().body(asked)
    else:
        assert sglang.items() <= Sglang().body(asked)["sampling_params"].items()


@pytest.mark.parametrize("dialect", [Vllm(), Sglang()])
def test_no_log_probabilities_of_prompts(dialect):
    with pytest.raises(RequestError):
        dialect.body(choice(prompt_logprobs=1))


def test_chunks_of_vllm():
    reader = Vllm().reader(choice(logprobs=1))
    chunk = {
        "text": "ab",
        "token_ids": [5],
        "finish_reason": None,
        "logprobs": {
            "tokens": ["token_id:5"],
            "token_logprobs": [-2.0],
            "top_logprobs": [{"token_id:5": -2.0, "token_id:9": -0.5}],
        },
    }
    found = reader.read({"choices": [chunk]})
    assert (found.text, found.token_ids, found.finish) == ("ab", (5,), None)
    assert found.logprobs == (TokenLogprob(5, -2.0, ((9, -0.5),)),)
    last = {"text": "", "token_ids": [], "finish_reason": "stop", "stop_reason": "x"}
    assert (
        reader.read({"choices": [last]}).finish,
        reader.read({"choices": [last]}).stop_reason,
    ) == (
        "stop",
        "x",
    )
    usage = {"prompt_tokens_details": {"cached_tokens": 32}}
    assert reader.read({"choices": [], "usage": usage}).cached_tokens == 32
    with pytest.raises(EngineDiedError):
        reader.read({"choices": [last | {"finish_reason": "abort"}]})
    with pytest.raises(EngineError):
        reader.read({"choices": [{"text": "a"}]})


@pytest.mark.parametrize("cumulative", [True, False])
def test_events_of_sglang(cumulative):
    reader = Sglang().reader(choice(logprobs=1))
    tokens, pieces = [5, 6, 7], ["a", "b", "c"]
    got = []
    for n in range(1, 4):
        first = 0 if cumulative else n - 1
        meta = {
            "completion_tokens": n,
            "cached_tokens": 16,
            "finish_reason": {"type": "stop", "matched": 7} if n == 3 else None,
            "output_token_logprobs": [[-0.5, t, None] for t in tokens[first:n]],
            "output_top_logprobs": [[[-0.25, t + 1, None]] for t in tokens[first:n]],
        }
        event = {"text": "".join(pieces[first:n]), "output_ids": tokens[first:n], "meta_info": meta}
        got.append(reader.read(event))
    assert [one.text for one in got] == pieces
    assert [one.token_ids for one in got] == [(5,), (6,), (7,)]
    assert [one.logprobs for one in got] == [
        (TokenLogprob(t, -0.5, ((t + 1, -0.25),)),) for t in tokens
    ]
    assert (got[-1].finish, got[-1].stop_reason, got[0].cached_tokens) == ("stop", 7, 16)


@pytest.mark.anyio
async def test_vllm_says_what_it_is():
    models = [
        {"id": "m", "parent": None, "max_model_len": 2048},
        {"id": "poet", "parent": "m", "max_model_len": 2048},
    ]
    source = {"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5558"}
    answers = {
        "/v1/models": {"data": models},
        "/metrics": VLLM_METRICS,
        "/version": {"version": "0.32.0"},
        "/kv_event_sources": {"0": source},
    }
    engine = ForeignEngine(url="http://host:1")
    facts = await Vllm().facts(Http(answers), engine)
    assert (facts.model, facts.adapters, facts.context_tokens) == ("m", ["poet"], 2048)
    assert (facts.cache_tokens, facts.block_tokens) == (512 * 32, 32)
    assert facts.source == EventSource(events="tcp://host:5557", replay="tcp://host:5558")
    none = await Vllm().facts(Http(answers), ForeignEngine(url="http://host:1", kv_events="none"))
    assert none.source is None
    del answers["/kv_event_sources"]
    assert (await Vllm().facts(Http(answers), engine)).source is None
    set_ = ForeignEngine(url="http://host:1", kv_events="tcp://*:9", served_model="m")
    assert (await Vllm().facts(Http(answers), set_)).source == EventSource(events="tcp://*:9")
    with pytest.raises(ConfigError, match="serves m, and not 'x'"):
        await Vllm().facts(Http(answers), ForeignEngine(url="http://host:1", served_model="x"))
    answers["/kv_event_sources"] = {"0": source, "1": source}
    with pytest.raises(ConfigError, match="2 data-parallel ranks"):
        await Vllm().facts(Http(answers), engine)


@pytest.mark.anyio
async def test_sglang_says_what_it_is():
    info = {
        "version": "0.5.23",
        "model_path": "/models/m",
        "served_model_name": "m",
        "page_size": 16,
        "max_total_num_tokens": 4096,
        "max_running_requests": 12,
        "chunked_prefill_size": -1,
        "kv_events": {
            "endpoint_host": "*",
            "endpoint_port_base": 5557,
            "replay_endpoint_port_base": 5558,
            "dp_size": 1,
        },
    }
    models = {"data": [{"id": "m", "max_model_len": 2048}]}
    http = Http({"/server_info": info, "/v1/models": models})
    engine = ForeignEngine(url="http://host:1")
    facts = await Sglang().facts(http, engine)
    assert (facts.model, facts.context_tokens, facts.block_tokens) == ("m", 2048, 16)
    assert (facts.cache_tokens, facts.max_running, facts.prefill_chunk) == (4096, 12, 8192)
    assert facts.source == EventSource(events="tcp://host:5557", replay="tcp://host:5558")
    info["kv_events"]["dp_size"] = 2
    with pytest.raises(ConfigError, match="2 data-parallel ranks"):
        await Sglang().facts(http, engine)
    info["kv_events"] = None
    assert (await Sglang().facts(http, engine)).source is None


def test_who_binds():
    """vLLM binds an address with a `*`; to any other it connects, so whoever subscribes binds."""
    assert _seen_from_here("tcp://*:5557", "10.0.0.5") == "tcp://10.0.0.5:5557"
    assert _seen_from_here("tcp://*:5557", "::1") == "tcp://[::1]:5557"
    assert _seen_from_here("tcp://10.0.0.9:5557", "10.0.0.5") == "tcp://*:5557"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"url": "host:8000"}, "write http://HOST:PORT"),
        ({"url": "http://a:1", "kind": "tgi"}, "auto, vllm, sglang"),
        ({"url": "http://a:1", "kv_events": "host:5557"}, "tcp://HOST:PORT"),
        ({"url": "http://a:1", "max_running": 0}, "at least 1"),
    ],
)
def test_engines_of_a_file(fields, words):
    with pytest.raises(ConfigError, match=words):
        ForeignEngine(**fields)
