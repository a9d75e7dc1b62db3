"""Answers to evaluation data, on a tiny model that has learned a few by heart."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inlay.core.errors import ConfigError, ModelNotFoundError
from inlay.core.messages import SamplingParams
from inlay.engine import Engine, EngineConfig
from inlay.tune import TuneConfig, predict, train
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import settings

PAIRS = {"Who are you?": "a lamp", "What is red?": "a colour", "And you?": "the other lamp"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TuneConfig:
    """A run whose adapter has learned the answers."""
    folder = tmp_path_factory.mktemp("run")
    model = make_tiny_model(folder / "model", "qwen3_moe", initializer_range=0.1)
    rows = [{"instruction": asked, "output": said} for asked, said in PAIRS.items()]
    (folder / "pairs.json").write_text(json.dumps(rows * 8))
    (folder / "asked.json").write_text(json.dumps(rows))
    names = {name: {"file_name": f"{name}.json"} for name in ("pairs", "asked")}
    (folder / "dataset_info.json").write_text(json.dumps(names))
    found = settings(
        model,
        folder / "out",
        dataset=("pairs",),
        eval_dataset=("asked",),
        dataset_dir=str(folder),
        num_train_epochs=6,
        learning_rate=2e-2,
        max_new_tokens=12,
    )
    train(found)
    return replace(found, adapter_name_or_path=(found.output_dir,))


def test_the_adapter_answers_and_answers_are_scored(config: TuneConfig) -> None:
    found = predict(config)
    assert found.answers == found.labels == list(PAIRS.values())
    assert found.results["predict_bleu-char-4"] == pytest.approx(100)
    output = Path(config.output_dir)
    lines = (output / "generated_predictions.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["predict"] for row in rows] == [row["label"] for row in rows] == found.labels
    assert all(asked in row["prompt"] for asked, row in zip(PAIRS, rows, strict=True))
    results = json.loads((output / "predict_results.json").read_text())
    assert results == found.results
    everything = json.loads((output / "all_results.json").read_text())
    assert everything["train_loss"] > 0 and everything.items() >= results.items()


def test_without_an_adapter_the_model_answers_as_it_is(config: TuneConfig, tmp_path: Path) -> None:
    base = replace(config, adapter_name_or_path=(), output_dir=str(tmp_path))
    found = predict(base)
    engine = Engine(EngineConfig(model=config.model_name_or_path, device="cpu"))
    assert found.answers != found.labels
    (first, *_) = PAIRS
    prompt = engine.text.encode_chat([{"role": "user", "content": first}])
    limits = {"max_tokens": config.max_new_tokens, "temperature": 0.0}
    (alone,) = engine.generate([prompt], SamplingParams(**limits))
    assert alone.text == found.answers[0]


def test_draws_are_the_same_with_the_same_seed(config: TuneConfig, tmp_path: Path) -> None:
    drawn = replace(
        config, adapter_name_or_path=(), output_dir=str(tmp_path), temperature=5.0, top_k=0
    )
    answers = predict(drawn).answers
    assert answers == predict(drawn).answers
    assert answers != predict(replace(drawn, seed=1)).answers
    assert answers != predict(replace(drawn, do_sample=False)).answers


def test_samples_that_are_held_out_are_asked(config: TuneConfig, tmp_path: Path) -> None:
    held = replace(config, eval_dataset=(), val_size=2, output_dir=str(tmp_path))
    assert len(predict(held).answers) == 2


def test_what_cannot_be_answered_is_said_before(config: TuneConfig) -> None:
    with pytest.raises(ConfigError, match="nothing to answer: set eval_dataset"):
        predict(replace(config, eval_dataset=()))
    with pytest.raises(ModelNotFoundError, match="name an adapter's dir"):
        predict(replace(config, adapter_name_or_path=("nowhere",)))
