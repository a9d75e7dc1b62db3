"""Adapters in an engine: chosen by requests, apart in the prefix cache, loaded and unloaded."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from inlay.core.errors import (
    AdapterInUseError,
    AdapterNotFoundError,
    ConfigError,
    ModelFileError,
    RequestError,
)
from inlay.core.messages import SamplingParams
from inlay.engine.config import EngineConfig
from inlay.engine.engine import Engine
from tests.integration.engine.engines import drain, request
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter, merge

PROMPT = list(range(5, 60))
WANTED = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
GREEDY = SamplingParams(**WANTED)
NAMES = ("", "a", "b")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, adapters a and b, and the models that they are merged into."""
    folder = tmp_path_factory.mktemp("adapters")
    model = make_tiny_model(folder / "model", "qwen3_moe")
    for seed, name in enumerate(NAMES[1:]):
        make_adapter(model, folder / name, seed=seed)
        merge(model, folder / name, folder / f"{name}-merged")
    return folder


@pytest.fixture
def engine(files: Path) -> Iterator[Engine]:
    adapters = tuple(f"{name}={files / name}" for name in NAMES[1:])
    made = Engine(EngineConfig(model=str(files / "model"), device="cpu", adapters=adapters))
    yield made
    made.audit()
    made.close()


def test_texts_are_those_of_merged_models(files: Path, engine: Engine) -> None:
    wanted = {}
    for name in NAMES:
        directory = files / (f"{name}-merged" if name else "model")
        plain = Engine(EngineConfig(model=str(directory), device="cpu"))
        wanted[name] = plain.generate(PROMPT, GREEDY)[0].choices[0].token_ids
        plain.close()
    assert len({tuple(ids) for ids in wanted.values()}) == len(NAMES)
    for number in range(9):  # out of order, all in one batch
        message = request(f"r{number}", PROMPT, adapter=NAMES[number * 2 % 3], **WANTED)
        engine.add(message)
    outputs = drain(engine)
    for number in range(9):
        choices = [c for o in outputs[f"r{number}"] for c in o.choices]
        assert [i for c in choices for i in c.token_ids] == wanted[NAMES[number * 2 % 3]]


def test_the_prefix_cache_is_apart(files: Path, engine: Engine) -> None:
    """Blocks are named by an adapter's content: neither another one's nor another name's."""
    for name in NAMES:
        assert engine.generate(PROMPT, GREEDY, adapter=name)[0].cached_tokens == 0
    first = {name: engine.generate(PROMPT, GREEDY, adapter=name)[0] for name in NAMES}
    assert [answer.cached_tokens for answer in first.values()] == [48, 48, 48]
    engine.adapters.unload("a")
    engine.adapters.unload("b")
    engine.adapters.load("b", str(files / "a"))  # the other's content, and a new name for it
    again = engine.generate(PROMPT, GREEDY, adapter="b")[0]
    assert again.cached_tokens == 48
    assert again.choices == first["a"].choices


def test_loading_and_unloading(files: Path, tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(AdapterNotFoundError, match=r"'c' here \(loaded: 'a', 'b'\)"):
        engine.generate(PROMPT, GREEDY, adapter="c")
    for name, message in (("a", "loaded already"), ("", "no name")):
        with pytest.raises(RequestError, match=message):
            engine.adapters.load(name, str(files / "b"))
    other = make_tiny_model(tmp_path / "other", "qwen3_moe", hidden_size=96)
    with pytest.raises(ModelFileError, match="another model's"):
        engine.adapters.load("c", str(make_adapter(other, tmp_path / "wrong")))
    engine.adapters.begin("d", str(files / "nothing"))
    with pytest.raises(RequestError, match="loaded already"):
        engine.adapters.begin("d", str(files / "b"))
    answers = []
    while not answers:
        answers = engine.adapters.take_answers()
    assert [(a.name, a.code) for a in answers] == [("d", "model_not_found")]
    engine.add(request("r", PROMPT, adapter="a", **WANTED))
    engine.step()
    with pytest.raises(AdapterInUseError, match="used by 1 running"):
        engine.adapters.unload("a")
    drain(engine)
    engine.adapters.unload("a")
    with pytest.raises(AdapterNotFoundError):
        engine.adapters.unload("a")
    assert list(engine.adapters.fingerprints) == ["b"]


def test_settings_are_checked() -> None:
    for adapters, message in ((("a",), "name=directory"), (("a=x", "a=y"), "twice")):
        with pytest.raises(ConfigError, match=message):
            EngineConfig(adapters=adapters)
