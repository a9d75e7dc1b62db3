"""Weights replaced where several processes share each layer: all of them, or none."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay.core.errors import ModelFileError, RankLostError, WeightsMismatchError
from inlay.core.messages import InFlight, SamplingParams
from inlay.engine import Engine, EngineConfig
from inlay.experts.config import PlacementConfig
from tests.integration.engine.engines import request
from tests.support.tiny_models import make_tiny_model

PROMPT = list(range(5, 45))
TOKENS = 40
GREEDY = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
FILE = "model.safetensors"
SIZES: dict[str, Any] = {
    "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 1,
    "moe_intermediate_size": 48,
}  # fmt: skip


def make_engine(model: Path, degree: int = 2) -> Engine:
    placement = PlacementConfig(tensor_parallel=degree)
    return Engine(
        EngineConfig(model=str(model), device="cpu", threads=2, seed=0, placement=placement)
    )


def answer(engine: Engine) -> list[int]:
    return list(engine.generate([PROMPT], GREEDY)[0].choices[0].token_ids)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = tmp_path_factory.mktemp("weights")
    return [make_tiny_model(made / str(seed), seed=seed, **SIZES) for seed in (1, 2)]


@pytest.fixture(scope="module")
def texts(models: list[Path]) -> list[list[int]]:
    """What fresh engines answer."""
    found = []
    for model in models:
        alone = make_engine(model)
        found.append(answer(alone))
        alone.close()
    assert found[0] != found[1]
    return found


@pytest.fixture(scope="module")
def shared(models: list[Path]) -> Iterator[Engine]:
    made = make_engine(models[0])
    yield made
    made.close()


@pytest.fixture
def engine(shared: Engine, models: list[Path]) -> Engine:
    """With the first weights, and nothing to do."""
    shared.swap_weights(models[0], "v1")
    assert shared.num_live == 0
    shared.reset_prefix_cache()
    return shared


def rank_models(engine: Engine) -> int:
    """Weights in memory of the first rank."""
    return engine._runner.num_models


def add(engine: Engine, name: str) -> None:
    engine.add(request(name, PROMPT, temperature=0, max_tokens=TOKENS, ignore_eos=True))


def step(engine: Engine, tokens: dict[str, list[int]]) -> bool:
    """Whether a request has ended."""
    ended = False
    for output in engine.step():
        assert output.error is None, output.error
        for delta in output.choices:
            tokens.setdefault(output.request_id, []).extend(delta.token_ids)
        ended = ended or bool(output.finished)
    return ended


def test_steps_go_on_while_all_ranks_load(
    engine: Engine, models: list[Path], texts: list[list[int]]
) -> None:
    """Requests before, while and after ranks load have the text of one of the weights, whole."""
    tokens: dict[str, list[int]] = {}
    add(engine, "before")
    while len(tokens.get("before", ())) < 5:
        step(engine, tokens)
    engine.begin_swap(models[1], "v2")
    while not (done := engine.take_swapped()):
        if not engine.num_live:
            add(engine, f"while {len(tokens)}")
        step(engine, tokens)
    assert done[0].error is None and done[0].made_bytes > 0
    add(engine, "after")
    while engine.num_live:
        step(engine, tokens)
    assert tokens.pop("before") == texts[0] and tokens.pop("after") == texts[1]
    assert all(one in texts for one in tokens.values())
    assert rank_models(engine) == 1
    engine.audit()
    engine.swap_weights(models[0], "v1")
    assert answer(engine) == texts[0]


@pytest.mark.parametrize("in_flight", ["recompute", "continue"])
def test_requests_under_way_go_on_by_the_new_weights(
    engine: Engine, models: list[Path], texts: list[list[int]], in_flight: InFlight
) -> None:
    tokens: dict[str, list[int]] = {}
    add(engine, "one")
    while len(tokens.get("one", ())) < 5:
        step(engine, tokens)
    engine.swap_weights(models[1], "v2", in_flight)
    assert rank_models(engine) == 1
    begun = len(tokens["one"])
    while not step(engine, tokens):
        pass
    text = tokens["one"]
    assert text[:begun] == texts[0][:begun] and text != texts[0] and len(text) == TOKENS
    rest = list(engine.generate([PROMPT + text[:begun]], GREEDY)[0].choices[0].token_ids)
    assert (text[begun:] == rest[: TOKENS - begun]) == (in_flight == "recompute")
    assert answer(engine) == texts[1]
    engine.audit()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_rollouts_pause_and_go_on(
    engine: Engine, models: list[Path], texts: list[list[int]], kv: str
) -> None:
    """Under equal weights as if nothing had been, under new ones as asked."""
    tokens: dict[str, list[int]] = {}
    for version, (weights, text) in enumerate(zip(models, texts, strict=True)):
        add(engine, str(version))
        while len(tokens.get(str(version), ())) < 6:
            step(engine, tokens)
        (paused,) = engine.pause_rollouts()
        engine.swap_weights(weights, f"v{version}")
        assert not engine.has_work and rank_models(engine) == 1
        engine.resume_rollouts(kv=kv)  # type: ignore[arg-type]
        while not step(engine, tokens):
            pass
        begun = list(paused.choices[0].token_ids)
        assert tokens[str(version)][: len(begun)] == texts[0][: len(begun)]
        assert answer(engine) == text
    assert tokens["0"] == texts[0], "the weights were equal"
    rest = list(engine.generate([PROMPT + begun], GREEDY)[0].choices[0].token_ids)
    recomputed = tokens["1"][len(begun) :] == rest[: TOKENS - len(begun)]
    assert recomputed == (kv == "recompute")
    engine.audit()


def write(like: Path, directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(like, directory)
    save_file(tensors, directory / FILE)
    return directory


def test_each_rank_makes_only_what_has_changed(
    engine: Engine, models: list[Path], tmp_path: Path
) -> None:
    tensors = load_file(models[0] / FILE)
    engine.swap_weights(models[1], "others")
    held = engine._runner._model.made_bytes
    engine.swap_weights(models[0], "v1")
    engine.swap_weights(dict(tensors), "the same")
    assert engine._runner._model.made_bytes == 0
    name = "model.layers.1.mlp.experts.3.down_proj.weight"
    tensors[name] = tensors[name] * 40
    engine.swap_weights(dict(tensors), "one expert")
    assert 0 < engine._runner._model.made_bytes < held // 10, "of both ranks"
    found = answer(engine)
    fresh = make_engine(write(models[0], tmp_path / "fresh", tensors))
    assert answer(fresh) == found
    fresh.close()


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_cannot_load_no_rank_serves(
    engine: Engine, models: list[Path], texts: list[list[int]], tmp_path: Path, rank: int
) -> None:
    tensors = load_file(models[1] / FILE)
    queries = tensors["model.layers.2.self_attn.q_proj.weight"]
    queries[-1 if rank else 0, 0] = float("nan")  # in the rows of this rank's heads alone
    torn = write(models[1], tmp_path / "torn", tensors)
    whose = r".*rank 1 of 2 \(process \d+\)" if rank else ""
    for _ in range(2):
        with pytest.raises(ModelFileError, match=f"q, k, v of layer 2 cannot be packed{whose}"):
            engine.swap_weights(torn, "v2")
        assert engine.stats().weight_version == "v1" and rank_models(engine) == 1
        assert answer(engine) == texts[0]
    other = make_tiny_model(tmp_path / "other", **{**SIZES, "num_hidden_layers": 1})
    with pytest.raises(WeightsMismatchError, match="layers 1 instead of 3"):
        engine.swap_weights(other, "v2")
    engine.swap_weights(models[1], "v2")
    assert answer(engine) == texts[1]


def test_a_rank_that_is_killed_while_it_loads(models: list[Path]) -> None:
    """Its part of the old weights is gone, too, so this is the engine's end; nobody waits."""
    engine = make_engine(models[0])
    (process,) = engine._ranks._processes  # type: ignore[union-attr]
    process.popen.send_signal(signal.SIGSTOP)
    engine.begin_swap(models[1], "v2")
    process.popen.kill()
    engine._updates.wait()
    engine.step()
    (done,) = engine.take_swapped()
    assert done.error is not None
    with pytest.raises(RankLostError, match="was killed by SIGKILL; its part of the model is gone"):
        add(engine, "late")
    engine.close()
