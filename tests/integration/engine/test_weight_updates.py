"""Weights replaced between steps: whose text requests get, and whose KV they may use."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay.core.errors import (
    ModelFileError,
    NotPausedError,
    RequestError,
    WeightsError,
    WeightsMismatchError,
)
from inlay.core.messages import GenerateRequest, RolloutHandle, SamplingParams, WeightsSwapped
from inlay.core.token_ids import pack_token_ids
from inlay.engine import Engine, EngineConfig
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter, merge

PROMPT = list(range(5, 75))
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same model with two sets of weights."""
    made = tmp_path_factory.mktemp("weights")
    return [make_tiny_model(made / str(seed), seed=seed) for seed in (1, 2)]


def make_engine(model: Path, **cache: object) -> Engine:
    config = EngineConfig(model=str(model), device="cpu", threads=2, seed=0, load="whole")
    return Engine(config)


@pytest.fixture
def engine(models: list[Path]) -> Engine:
    return make_engine(models[0])


@pytest.fixture(scope="module")
def texts(models: list[Path]) -> list[list[int]]:
    """What either set of weights answers."""
    found = []
    for model in models:
        alone = make_engine(model)
        found.append(list(alone.generate([PROMPT], GREEDY)[0].choices[0].token_ids))
        alone.close()
    assert found[0] != found[1]
    return found


def add(engine: Engine, request_id: str, prompt: list[int] = PROMPT) -> None:
    engine.add(
        GenerateRequest(
            request_id=request_id, prompt=pack_token_ids(prompt), params=GREEDY, arrival_s=0.0
        )
    )


def swapped(engine: Engine, tensors: dict[str, torch.Tensor], version: str) -> list[WeightsSwapped]:
    """Replace the weights, and say what became of it."""
    engine._updates.begin(tensors, version, "finish")
    engine._updates.wait()
    engine._updates.poll()
    return engine.take_swapped()


def write_model(like: Path, directory: Path, tensors: dict[str, torch.Tensor]) -> Path:
    shutil.copytree(like, directory)
    save_file(tensors, directory / "model.safetensors")
    return directory


class Steps:
    """Steps an engine, and keeps the tokens of each request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}
        self.ended: set[str] = set()

    def step(self) -> None:
        for output in self.engine.step():
            assert output.error is None, output.error
            kept = self.tokens.setdefault(output.request_id, [])
            for delta in output.choices:
                kept += delta.token_ids
            if output.cached_tokens is not None:
                self.cached[output.request_id] = output.cached_tokens
            if output.finished:
                self.ended.add(output.request_id)

    def until(self, met: Callable[[], bool]) -> None:
        for _ in range(300):
            if met():
                return
            self.step()
        raise AssertionError("it does not come")


def test_requests_that_have_begun_end_under_their_weights(
    engine: Engine, models: list[Path], texts: list[list[int]]
) -> None:
    steps = Steps(engine)
    add(engine, "old")
    steps.until(lambda: len(steps.tokens.get("old", ())) >= 5)
    engine.swap_weights(models[1], "v2")
    add(engine, "new")
    steps.until(lambda: steps.ended == {"old", "new"})
    assert steps.tokens == {"old": texts[0], "new": texts[1]}
    assert steps.cached["new"] == 0, "KV of the old weights was taken"
    assert engine.stats().weight_version == "v2"
    engine.audit()
    add(engine, "again")
    steps.until(lambda: "again" in steps.ended)
    assert steps.tokens["again"] == texts[1] and steps.cached["again"] >= 64
    engine.close()


def test_requests_are_computed_again_by_the_new_weights(
    engine: Engine, models: list[Path], texts: list[list[int]]
) -> None:
    steps = Steps(engine)
    add(engine, "one")
    steps.until(lambda: len(steps.tokens.get("one", ())) >= 5)
    engine.swap_weights(models[1], "v2", "recompute")
    begun = list(steps.tokens["one"])
    steps.until(lambda: "one" in steps.ended)
    assert steps.tokens["one"][: len(begun)] == begun
    # As a prompt of its own under the new weights.
    rest = engine.generate([PROMPT + begun], GREEDY)[0].choices[0].token_ids
    assert steps.tokens["one"][len(begun) :] == list(rest)[: GREEDY.max_tokens - len(begun)]
    engine.audit()
    engine.close()


def test_kv_of_two_weights_is_for_nobody_else(engine: Engine, models: list[Path]) -> None:
    steps = Steps(engine)
    add(engine, "one")
    steps.until(lambda: len(steps.tokens.get("one", ())) >= 5)
    engine.swap_weights(models[1], "v2", "continue")
    steps.until(lambda: "one" in steps.ended)
    add(engine, "two", PROMPT + steps.tokens["one"])
    steps.until(lambda: "two" in steps.ended)
    assert steps.cached["two"] == 0
    engine.audit()
    engine.close()


def test_going_back_finds_the_old_blocks(
    engine: Engine, models: list[Path], texts: list[list[int]]
) -> None:
    steps = Steps(engine)
    engine.swap_weights(models[0], "v1")
    add(engine, "one")
    steps.until(lambda: "one" in steps.ended)
    engine.swap_weights(models[1], "v2")
    engine.swap_weights(models[0], "v1")
    add(engine, "two")
    steps.until(lambda: "two" in steps.ended)
    assert steps.tokens["two"] == texts[0] and steps.cached["two"] >= 64
    engine.close()


def test_live_tensors_are_taken(engine: Engine, models: list[Path], texts: list[list[int]]) -> None:
    tensors = load_file(models[1] / "model.safetensors")
    engine.swap_weights(tensors, "live")
    for tensor in tensors.values():
        tensor.zero_()  # the trainer goes on
    assert list(engine.generate([PROMPT], GREEDY)[0].choices[0].token_ids) == texts[1]
    del tensors["model.norm.weight"]
    with pytest.raises(ModelFileError, match="lack model.norm.weight"):
        engine.swap_weights(tensors, "partial")
    tensors["model.norm.weight"] = torch.zeros(3)
    with pytest.raises(ModelFileError, match=r"model.norm.weight \[3\] instead of"):
        engine.swap_weights(tensors, "wrong")
    assert list(engine.generate([PROMPT], GREEDY)[0].choices[0].token_ids) == texts[1]
    engine.close()


def test_one_changed_tensor_is_made_alone(
    engine: Engine, models: list[Path], texts: list[list[int]], tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.experts.3.down_proj.weight"
    tensors = load_file(models[0] / "model.safetensors")
    steps = Steps(engine)
    add(engine, "old")
    steps.until(lambda: len(steps.tokens.get("old", ())) >= 5)
    held = engine._runner._model.made_bytes
    for factor in (40.0, -0.5):
        tensors[name] = tensors[name] * factor
        (done,) = swapped(engine, tensors, str(factor))
        assert 0 < done.made_bytes < held // 20, "more than one expert was made"
        fresh = write_model(models[0], tmp_path / str(factor), tensors)
        alone = make_engine(fresh)
        wanted = list(alone.generate([PROMPT], GREEDY)[0].choices[0].token_ids)
        alone.close()
        add(engine, version := str(factor))
        steps.until(lambda: version in steps.ended)
        assert steps.tokens[version] == wanted
    steps.until(lambda: "old" in steps.ended)
    assert steps.tokens["old"] == texts[0], "the old weights have been written to"
    assert engine._runner.num_models == 1
    (done,) = swapped(engine, tensors, "the same")
    assert done.made_bytes == 0
    engine.close()


def test_other_models_are_refused_and_the_old_one_serves(
    engine: Engine, models: list[Path], texts: list[list[int]], tmp_path: Path
) -> None:
    other = make_tiny_model(tmp_path / "other", num_hidden_layers=1)
    with pytest.raises(WeightsMismatchError, match="layers 1 instead of"):
        engine.swap_weights(other, "v2")
    torn = make_tiny_model(tmp_path / "torn", seed=2)
    file = torn / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelFileError, match="cut off or damaged"):
        engine.swap_weights(torn, "v2")
    with pytest.raises(WeightsError, match="version"):
        engine.swap_weights(models[1], "")
    assert list(engine.generate([PROMPT], GREEDY)[0].choices[0].token_ids) == texts[0]
    assert engine.stats().weight_version == ""
    engine.close()


def steps_begun(engine: Engine, *request_ids: str) -> Steps:
    """Requests that have six tokens or more each."""
    steps = Steps(engine)
    for request_id in request_ids:
        add(engine, request_id)
    steps.until(lambda: all(len(steps.tokens.get(one, ())) >= 6 for one in request_ids))
    return steps


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_a_paused_text_goes_on_as_if_nothing_was(
    engine: Engine, texts: list[list[int]], kv: str
) -> None:
    steps = steps_begun(engine, "one", "two")
    (paused,) = engine.pause_rollouts(["one"])
    assert list(paused.choices[0].token_ids) == steps.tokens["one"] and paused.choices[0].blocks
    steps.until(lambda: "two" in steps.ended)
    assert list(paused.choices[0].token_ids) == steps.tokens["one"], "it went on"
    assert not engine.has_work
    engine.audit()
    assert engine.resume_rollouts([paused.handle], kv) == ["one"]  # type: ignore[arg-type]
    steps.until(lambda: "one" in steps.ended)
    assert steps.tokens == {"one": texts[0], "two": texts[0]}
    engine.audit()
    engine.close()


@pytest.mark.parametrize("kv", ["keep", "recompute"])
def test_a_paused_text_goes_on_by_new_weights(
    engine: Engine, models: list[Path], texts: list[list[int]], kv: str
) -> None:
    steps = steps_begun(engine, "one")
    (paused,) = engine.pause_rollouts()
    engine.swap_weights(models[1], "v2")
    assert engine._runner.num_models == 1, "the old weights are kept for what is paused"
    engine.resume_rollouts(kv=kv)  # type: ignore[arg-type]
    steps.until(lambda: "one" in steps.ended)
    begun = list(paused.choices[0].token_ids)
    assert steps.tokens["one"][: len(begun)] == begun
    rest = list(engine.generate([PROMPT + begun], GREEDY)[0].choices[0].token_ids)
    recomputed = steps.tokens["one"][len(begun) :] == rest[: GREEDY.max_tokens - len(begun)]
    assert recomputed == (kv == "recompute")
    engine.audit()
    engine.close()


def test_what_is_not_paused_so_does_not_go_on(
    engine: Engine, models: list[Path], texts: list[list[int]]
) -> None:
    """Nothing goes on then, and the handle of before holds under newer weights."""
    steps = steps_begun(engine, "one", "two")
    (paused,) = engine.pause_rollouts(["one"])
    assert paused.handle == RolloutHandle("one", "")
    running, other = RolloutHandle("two", ""), RolloutHandle("one", "v9")
    with pytest.raises(NotPausedError, match=r"nothing is resumed: two@ is not paused$"):
        engine.resume_rollouts([paused.handle, running])
    with pytest.raises(NotPausedError, match=r"one@v9 is paused as one@; two@ is not paused$"):
        engine.resume_rollouts([paused.handle, other, running])
    with pytest.raises(RequestError, match="is running here"):
        engine.resume_rollouts([paused.handle, RolloutHandle("1:strange", "")])
    steps.until(lambda: "two" in steps.ended)
    assert list(paused.choices[0].token_ids) == steps.tokens["one"], "it went on"
    engine.swap_weights(models[1], "v2")
    with pytest.raises(NotPausedError, match="one@v2 is paused as one@"):
        engine.resume_rollouts([RolloutHandle("one", "v2")])
    assert engine.resume_rollouts([paused.handle, paused.handle]) == ["one"]
    with pytest.raises(NotPausedError, match="one@ is not paused"):
        engine.resume_rollouts([paused.handle])
    steps.until(lambda: "one" in steps.ended)
    engine.audit()
    engine.close()


def test_waiting_and_unknown_requests(engine: Engine, texts: list[list[int]]) -> None:
    steps = Steps(engine)
    add(engine, "one")
    (paused,) = engine.pause_rollouts()
    assert not paused.choices[0].token_ids and not engine.has_work
    with pytest.raises(RequestError, match="is running here"):
        engine.pause_rollouts(["1:strange"])
    engine.resume_rollouts()
    steps.until(lambda: "one" in steps.ended)
    assert steps.tokens["one"] == texts[0]
    add(engine, "two")
    engine.pause_rollouts()
    engine.cancel("two")
    assert engine.num_live == 0
    engine.audit()
    engine.close()


def test_adapters_are_added_to_the_new_weights(models: list[Path], tmp_path: Path) -> None:
    """Those that were loaded before, one that a request uses meanwhile, and one loaded after."""
    adapters = {name: make_adapter(models[0], tmp_path / name, seed=3) for name in ("a", "b")}
    merge(models[1], adapters["a"], tmp_path / "merged")
    wanted = make_engine(tmp_path / "merged")
    text = wanted.generate([PROMPT], GREEDY)[0].choices[0].token_ids
    wanted.close()
    engine = make_engine(models[0])
    engine.adapters.load("a", str(adapters["a"]))
    engine.generate([PROMPT], GREEDY, adapter="a")
    message = GenerateRequest(
        request_id="one",
        prompt=pack_token_ids(PROMPT),
        params=GREEDY,
        arrival_s=0.0,
        adapter="a",
    )
    steps = Steps(engine)
    engine.add(message)
    steps.until(lambda: len(steps.tokens.get("one", ())) >= 5)
    engine.swap_weights(models[1], "v2", "recompute")
    begun = list(steps.tokens["one"])
    steps.until(lambda: "one" in steps.ended)
    engine.adapters.load("b", str(adapters["b"]))
    for name in ("a", "b"):
        answer = engine.generate([PROMPT], GREEDY, adapter=name)[0]
        assert answer.choices[0].token_ids == text
        assert answer.cached_tokens >= 64, "both have the content that has computed it again"
    rest = engine.generate([PROMPT + begun], GREEDY, adapter="a")[0]
    assert steps.tokens["one"][len(begun) :] == list(rest.choices[0].token_ids)[: 24 - len(begun)]
    assert rest.cached_tokens >= 64, "what was computed again is named by the adapter, too"
    engine.audit()
    engine.close()
