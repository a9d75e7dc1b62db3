"""Weights behind a dispatcher: what requests say of them, and whose KV they take."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import WeightsConflictError
from inlay.core.messages import GenerateRequest, SamplingParams, Structure
from inlay.core.token_ids import pack_token_ids
from inlay.engine import Engine, EngineConfig
from tests.integration.engine.pairs import Pair, settle, token_ids
from tests.support.tiny_models import make_tiny_model

PROMPT = list(range(5, 75))
GREEDY = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The same model with two sets of weights."""
    made = tmp_path_factory.mktemp("weights")
    return [make_tiny_model(made / str(seed), seed=seed) for seed in (1, 2)]


@pytest.fixture
def make(models: list[Path]) -> Iterator[Callable[[], Engine]]:
    """Engines with the first weights, which exchange KV."""
    engines: list[Engine] = []

    def new() -> Engine:
        config = EngineConfig(
            model=str(models[0]),
            device="cpu",
            threads=2,
            seed=0,
            load="whole",
            exchange="127.0.0.1:0",
        )
        engines.append(Engine(config))
        return engines[-1]

    yield new
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def texts(models: list[Path]) -> list[list[int]]:
    """What either set of weights answers."""
    found = []
    for model in models:
        alone = Engine(EngineConfig(model=str(model), device="cpu", threads=2, load="whole"))
        answer = alone.generate([PROMPT], SamplingParams(**GREEDY))  # type: ignore[arg-type]
        found.append(list(answer[0].choices[0].token_ids))
        alone.close()
    assert found[0] != found[1]
    return found


def message(request_id: str, prompt: list[int] = PROMPT, **fields: Any) -> GenerateRequest:
    params = SamplingParams(**{**GREEDY, **fields.pop("params", {})})
    return GenerateRequest(
        request_id=request_id,
        prompt=pack_token_ids(prompt),
        params=params,
        arrival_s=0.0,
        **fields,
    )


class Told:
    """Steps one engine, and keeps what it says."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.outputs: dict[str, list[Any]] = {}

    def until(self, met: Callable[[], bool]) -> None:
        end_s = time.monotonic() + 60
        while not met():
            assert time.monotonic() < end_s, "it does not come"
            for output in self.engine.step():
                self.outputs.setdefault(output.request_id, []).append(output)
            if not self.engine.has_work:
                self.engine.wait(0.01)

    def ended(self, request_id: str) -> bool:
        return bool(self.outputs.get(request_id)) and self.outputs[request_id][-1].finished

    def text(self, request_id: str) -> list[int]:
        self.until(lambda: self.ended(request_id))
        return list(token_ids(self.outputs[request_id])[0])


def test_requests_for_other_weights_are_refused(
    make: Callable[[], Engine], models: list[Path], texts: list[list[int]]
) -> None:
    engine = make()
    first = engine.namespace.weights
    engine.add(message("r1", weights=first))
    assert Told(engine).text("r1") == texts[0]
    engine.swap_weights(models[1], "v2")
    assert engine.namespace.weights != first
    with pytest.raises(WeightsConflictError, match="computes by weights v2, and the request is"):
        engine.add(message("r2", weights=first))
    engine.add(message("r3", weights=engine.namespace.weights))
    assert Told(engine).text("r3") == texts[1]


def test_what_was_sent_for_weights_is_computed_by_them(
    make: Callable[[], Engine], models: list[Path], texts: list[list[int]]
) -> None:
    """Also where nothing of it was computed before others came."""
    engine = make()
    told = Told(engine)
    engine.add(message("r1", weights=engine.namespace.weights))
    engine.swap_weights(models[1], "v2")
    engine.add(message("r2", weights=engine.namespace.weights))
    assert told.text("r1") == texts[0] and told.text("r2") == texts[1]
    assert engine._runner.num_models == 1
    engine.audit()


def test_one_whose_grammar_is_not_compiled_goes_elsewhere(
    make: Callable[[], Engine], models: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    told = Told(engine)
    structure = Structure("regex", "[a-z]{3,8}")
    engine.add(message("r1", weights=engine.namespace.weights, params={"structure": structure}))
    if not engine._requests._compiling:
        pytest.skip("this grammar is compiled at once")
    # As if it took as long as the weights do.
    monkeypatch.setattr(engine._requests, "start_compiled", lambda: None)
    engine.swap_weights(models[1], "v2")
    told.until(lambda: told.ended("r1"))
    assert told.outputs["r1"][-1].error_code == WeightsConflictError.code
    assert engine.num_live == 0


def test_kv_of_other_weights_is_taken_where_that_is_asked_for(
    make: Callable[[], Engine], models: list[Path], texts: list[list[int]]
) -> None:
    engine = make()
    told = Told(engine)
    first = engine.namespace.weights
    engine.add(message("r1"))
    begun = told.text("r1")[:16]
    engine.swap_weights(models[1], "v2")
    fields = {"weights": engine.namespace.weights, "produced": (tuple(begun),)}
    engine.add(message("keep", kv_weights=first, **fields))
    kept = told.text("keep")
    assert told.outputs["keep"][0].cached_tokens >= 64
    assert len(kept) == GREEDY["max_tokens"] - len(begun)
    # Nothing of it is named: neither as of the new weights nor as of the old ones.
    engine.add(message("recompute", **fields))
    recomputed = told.text("recompute")
    assert told.outputs["recompute"][0].cached_tokens == 0
    alone = engine.generate([PROMPT + begun], SamplingParams(**GREEDY))[0]  # type: ignore[arg-type]
    assert recomputed == list(alone.choices[0].token_ids)[: len(recomputed)]
    engine.audit()


def test_a_prompt_is_sent_and_continued_by_the_weights_that_both_had(
    make: Callable[[], Engine], models: list[Path], texts: list[list[int]]
) -> None:
    """Both instances get others while it is on its way from the one to the other."""
    pair = Pair(make(), make())
    first = pair.prefill.namespace.weights
    pair.deaf = True  # the target is passed on later
    pair.add(message("r1", weights=first))
    while "r1" not in pair.targets:
        pair.step()
    for engine in (pair.decode, pair.prefill):
        engine.swap_weights(models[1], "v2")
    pair.deaf = False
    pair.prefill.kv_target(pair.targets["r1"])
    outputs = pair.drain()
    assert token_ids(outputs["r1"])[0] == texts[0]
    assert not pair.given_up and outputs["r1"][0].cached_tokens is not None
    pair.add(message("r2", weights=pair.prefill.namespace.weights))
    outputs = pair.drain()
    assert token_ids(outputs["r2"])[0] == texts[1]
    for engine in (pair.decode, pair.prefill):
        settle(engine)
        assert engine._runner.num_models == 1
        engine.audit()


@pytest.mark.parametrize("in_flight", ["recompute", "continue"])
def test_other_ways_wait_until_the_prompt_has_come(
    make: Callable[[], Engine], models: list[Path], texts: list[list[int]], in_flight: Any
) -> None:
    pair = Pair(make(), make())
    pair.deaf = True
    pair.add(message("r1", weights=pair.prefill.namespace.weights))
    while "r1" not in pair.targets:
        pair.step()
    for engine in (pair.decode, pair.prefill):
        engine.swap_weights(models[1], "v2", in_flight)
    pair.prefill.kv_target(pair.targets["r1"])
    outputs = pair.drain()
    assert token_ids(outputs["r1"])[0] == texts[0]
    for engine in (pair.decode, pair.prefill):
        engine.audit()
