import pytest

from inlay.core.errors import ContextLengthError, RequestError
from inlay.core.messages import EngineInfo, GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from inlay.engine.validation import check_request

INFO = EngineInfo(
    model="m",
    architecture="llama",
    parameters=1,
    max_context_tokens=100,
    vocab_size=50,
    layers=1,
    moe_layers=0,
    experts=0,
    experts_per_token=0,
    device="cpu",
    weight_format="float32",
    kv_dtype="float32",
    isa="scalar",
    page_tokens=16,
    num_pages=10,
    page_bytes=64,
    load_s=0.0,
)


def _check(prompt=(1, 2, 3), **params):
    request = GenerateRequest(
        request_id="a",
        prompt=pack_token_ids(prompt),
        params=SamplingParams(**params),
        arrival_s=0.0,
    )
    return check_request(request, INFO, max_running=8)


def test_the_output_limit_is_resolved():
    assert _check(max_tokens=5) == 5
    assert _check() == 97
    assert _check(max_tokens=0) == 0
    assert _check(prompt=[1] * 99) == 1
    assert _check(prompt=[1] * 100, max_tokens=0) == 0


@pytest.mark.parametrize(
    ("size", "max_tokens", "message"),
    [
        (100, None, "the prompt has 100 tokens, and the context holds 100"),
        (101, 0, "the prompt has 101 tokens, and the context holds 100"),
        (60, 41, "60 tokens and max_tokens is 41, together 101, but the context holds 100"),
    ],
)
def test_what_does_not_fit_the_context(size, max_tokens, message):
    with pytest.raises(ContextLengthError, match=message) as caught:
        _check(prompt=[1] * size, max_tokens=max_tokens)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"prompt": []}, "prompt", "at least one token"),
        ({"prompt": [1, 50]}, "prompt", "token id 50, but the model's ids are 0..49"),
        ({"prompt": [-1]}, "prompt", "token id -1"),
        ({"temperature": -0.1}, "temperature", "at least 0.0, got -0.1"),
        ({"temperature": float("nan")}, "temperature", "got nan"),
        ({"temperature": float("inf")}, "temperature", "got inf"),
        ({"top_k": -1}, "top_k", "at least 0"),
        ({"top_p": 0.0}, "top_p", r"in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, "top_p", r"in \(0, 1\], got 1.1"),
        ({"min_p": 1.5}, "min_p", "0.0..1.0"),
        ({"presence_penalty": 3.0}, "presence_penalty", "-2.0..2.0"),
        ({"frequency_penalty": -3.0}, "frequency_penalty", "-2.0..2.0"),
        ({"repetition_penalty": 0.0}, "repetition_penalty", "above 0"),
        ({"repetition_penalty": 1000.1}, "repetition_penalty", "0.0..1000.0"),
        ({"max_tokens": -1}, "max_tokens", "at least 0"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens", "above max_tokens 5"),
        ({"n": 0}, "n", "1..8, got 0"),
        ({"n": 9}, "n", "1..8, got 9"),
        ({"logprobs": -1}, "logprobs", "0..50"),
        ({"stop": ("a", "")}, "stop", "empty"),
        ({"logit_bias": {50: 1.0}}, "logit_bias", "token id 50"),
        ({"logit_bias": {1: float("nan")}}, "logit_bias", "-100..100, got nan"),
        ({"logit_bias": {1: 2.0, 3: -100.5}}, "logit_bias", "-100..100, got -100.5"),
        ({"stop_token_ids": (-2,)}, "stop_token_ids", "token id -2"),
    ],
)
def test_bad_values_are_named(fields, param, message):
    with pytest.raises(RequestError, match=message) as caught:
        _check(**fields)
    assert caught.value.param == param
