"""Adapters in an engine: chosen by requests, apart in the prefix cache, loaded and unloaded."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from inlay.core.errors import (
    AdapterInUseError,
    AdapterNotFoundError,
    ConfigError,
    ModelFileError,
    ModelNotFoundError,
    RankLostError,
    RequestError,
)
from inlay.core.messages import SamplingParams
from inlay.engine.config import EngineConfig
from inlay.engine.engine import Engine
from inlay.experts.config import ExpertsConfig, PlacementConfig
from tests.integration.engine.engines import drain, request
from tests.integration.engine.pairs import token_ids
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
    with pytest.raises(AdapterNotFoundError, match=r"'c' here \(loaded: 'a', 'b'\): load it"):
        engine.generate(PROMPT, GREEDY, adapter="c")
    with pytest.raises(AdapterNotFoundError, match="did you mean a\\?"):
        engine.generate(PROMPT, GREEDY, adapter="A")
    with pytest.raises(AdapterNotFoundError, match="there is no adapter ''"):
        engine.adapters.unload("")
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


SHARED = {
    "qwen3_moe": {"num_attention_heads": 6, "num_key_value_heads": 1, "moe_intermediate_size": 48},
    "deepseek_v2": {"moe_intermediate_size": 48},
}


@contextmanager
def shared_engine(model: Path, degree: int, *adapters: str, deferral: int = 0) -> Iterator[Engine]:
    """One whose layers so many processes share."""
    made = Engine(
        EngineConfig(
            model=str(model),
            device="cpu",
            threads=degree,
            placement=PlacementConfig(tensor_parallel=degree),
            experts=ExpertsConfig(deferral=deferral),
            adapters=adapters,
        )
    )
    try:
        yield made
        made.audit()
    finally:
        made.close()


@pytest.mark.parametrize(
    ("architecture", "deferral"), [("qwen3_moe", 0), ("qwen3_moe", 1), ("deepseek_v2", 0)]
)
def test_ranks_give_the_texts_of_one_process(
    tmp_path: Path, architecture: str, deferral: int
) -> None:
    """On all matrices; adapters come and go between steps of others."""
    model = make_tiny_model(
        tmp_path / "model", architecture, num_hidden_layers=3, **SHARED[architecture]
    )
    paths = {
        name: make_adapter(model, tmp_path / name, seed=seed) for seed, name in enumerate(NAMES[1:])
    }
    texts = []
    for degree in (1, 2):
        with shared_engine(model, degree, f"a={paths['a']}", deferral=deferral) as engine:
            engine.add(request("base", PROMPT, **WANTED))
            engine.step()
            engine.adapters.load("b", str(paths["b"]))
            for number in range(6):
                message = request(f"r{number}", PROMPT, adapter=NAMES[number % 3], **WANTED)
                engine.add(message)
            texts.append({one: token_ids(of) for one, of in drain(engine).items()})
            engine.adapters.unload("a")
            engine.adapters.load("a", str(paths["b"]))  # another one under the old name
            (again,) = engine.generate(PROMPT, GREEDY, adapter="a")
            assert again.choices[0].token_ids == texts[-1]["r2"][0]
    assert texts[0] == texts[1]
    assert len({tuple(texts[0][f"r{number}"][0]) for number in range(3)}) == 3


def test_one_that_a_rank_cannot_load_is_nowhere(files: Path, tmp_path: Path) -> None:
    """The engine's process can read it, the other rank's cannot."""
    model = make_tiny_model(tmp_path / "model", "qwen3_moe", **SHARED["qwen3_moe"])
    good, link = make_adapter(model, tmp_path / "good"), tmp_path / "link"
    with shared_engine(model, 2, f"good={good}") as engine:
        (wanted,) = engine.generate(PROMPT, GREEDY, adapter="good")
        opened = os.open(good, os.O_RDONLY)
        try:
            link.symlink_to(f"/proc/self/fd/{opened}")  # other processes have no such file
            said = r"adapter_config.json.*\(rank 1 of 2 \(process \d+\)\)"
            with pytest.raises(ModelNotFoundError, match=said):
                engine.adapters.load("link", str(link))
        finally:
            os.close(opened)
        with pytest.raises(ModelFileError, match=r"another model's[^()]*$"):
            engine.adapters.load("other", str(files / "a"))
        assert list(engine.adapters.fingerprints) == ["good"]
        engine.adapters.load("link", str(good))
        for name in ("good", "link"):
            assert engine.generate(PROMPT, GREEDY, adapter=name)[0].choices == wanted.choices


def test_a_rank_that_is_killed_ends_the_loading(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "qwen3_moe", **SHARED["qwen3_moe"])
    adapter = make_adapter(model, tmp_path / "a")
    with shared_engine(model, 2) as engine:
        assert engine._ranks is not None
        engine._ranks._processes[0].popen.kill()
        with pytest.raises(RankLostError):
            engine.adapters.load("a", str(adapter))


def test_ranks_of_an_engine_that_cannot_start_end(files: Path) -> None:
    before = set(psutil.Process().children())
    with (
        pytest.raises(ModelNotFoundError, match="adapter_config"),
        shared_engine(files / "model", 2, f"a={files / 'nothing'}"),
    ):
        pass
    assert not psutil.wait_procs(set(psutil.Process().children()) - before, timeout=60)[1]


def test_settings_are_checked() -> None:
    for adapters, message in ((("a",), "name=directory"), (("a=x", "a=y"), "twice")):
        with pytest.raises(ConfigError, match=message):
            EngineConfig(adapters=adapters)
