"""The same engine on a CUDA device."""

import logging
from contextlib import closing

import numpy as np
import pytest

from inlay.cache import CacheConfig
from inlay.core.messages import SamplingParams
from inlay.engine import Engine, EngineConfig
from inlay.experts.config import ExpertsConfig, PlacementConfig
from tests.integration.engine.engines import DEMO
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter

PROMPTS = ["The lantern hangs", "A carpenter sets small pieces", "Every morning the ferry " * 20]
WORDS = ["Define lantern.", "Define harbour.", "Define copper."]
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe"])
def test_greedy_text_is_that_of_the_cpu(architecture, tmp_path):
    model = str(make_tiny_model(tmp_path / "model", architecture, dtype="float32"))
    texts = {}
    for device in ("cpu", "cuda"):
        engine = Engine(EngineConfig(model=model, device=device, weight_format="float32"))
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        first = [c.text for c in engine.generate(PROMPTS, params)]
        again = [c.text for c in engine.generate(PROMPTS, params)]  # after prefix hits
        engine.close()
        assert first == again
        texts[device] = first
    assert texts["cpu"] == texts["cuda"]


@pytest.mark.gpu
@pytest.mark.parametrize("weight_format", ["bfloat16", "int4:g32+bfloat16"])
@pytest.mark.parametrize("gpu_experts", [None, 4, 0])
@pytest.mark.parametrize("deferral", [0, 2])
def test_replayed_steps_give_the_same_text(weight_format, gpu_experts, deferral, caplog):
    caplog.set_level(logging.INFO, "inlay.models.decode_graph")
    texts = {}
    for graph in ("off", "auto"):
        with closing(_demo(weight_format, graph, gpu_experts, deferral=deferral, moves="0")) as it:
            # Recordings of three rows, and of one.
            texts[graph] = [c.text for c in it.generate(WORDS, GREEDY)]
            texts[graph] += [c.text for c in it.generate(WORDS[:1], GREEDY)]
    assert texts["off"] == texts["auto"]
    assert {1, 3} <= _sizes_of(caplog)


@pytest.mark.gpu
def test_steps_are_replayed_while_experts_move(caplog):
    caplog.set_level(logging.INFO, "inlay.models.decode_graph")
    with closing(_demo("bfloat16", "auto", 4, deferral=2, moves="1GiB")) as engine:
        texts = [c.text for c in engine.generate(WORDS * 4, GREEDY)]
        assert all(texts) and engine.stats().experts_moved > 0
    assert 12 in _sizes_of(caplog)


@pytest.mark.gpu
@pytest.mark.parametrize("gpu_experts", [None, 4, 0])
def test_adapters_change_what_they_change_on_the_cpu(gpu_experts, tmp_path):
    """On every matrix, wherever experts are; and the model itself stays as it is."""
    adapters = (f"voice={make_adapter(DEMO, tmp_path / 'adapter')}",)
    of_cpu = EngineConfig(
        model=str(DEMO), device="cpu", weight_format="bfloat16", adapters=adapters
    )
    of_gpu = _demo("bfloat16", "auto", gpu_experts, adapters=adapters, moves="0")
    with closing(Engine(of_cpu)) as on_cpu, closing(of_gpu) as on_gpu:
        before = _likely(on_gpu, "")
        found, wanted = _likely(on_gpu, "voice"), _likely(on_cpu, "voice")
        assert np.abs(found - wanted).mean() < 0.2  # bfloat16 is off by 0.02 from float32
        assert np.abs(found - before).mean() > 0.6
        assert np.array_equal(_likely(on_gpu, ""), before)


def _likely(engine, adapter):
    """Log probabilities of the tokens of prompts."""
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    answers = engine.generate(WORDS, params, adapter=adapter)
    return np.array([one.logprob for a in answers for one in a.prompt_logprobs or () if one])


def _demo(weight_format, graph, gpu_experts, *, adapters=(), **experts):
    return Engine(
        EngineConfig(
            adapters=adapters,
            model=str(DEMO),
            device="cuda",
            weight_format=weight_format,
            graph=graph,
            placement=PlacementConfig(gpu_experts=gpu_experts),
            experts=ExpertsConfig(stream=0, **experts),
            cache=CacheConfig(pages=200),
        )
    )


def _sizes_of(caplog):
    assert not [line for line in caplog.messages if "not replayed" in line], caplog.text
    return {
        int(line.split(" up to ")[1].split()[0])
        for line in caplog.messages
        if "are replayed" in line
    }
