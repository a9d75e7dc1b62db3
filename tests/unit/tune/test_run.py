"""Whole runs on tiny models: files, going on, and what goes wrong."""

import json
import resource
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inlay.core.errors import ConfigError, DataError, ResourceError, TrainingError
from inlay.tune import RunResult, TuneConfig, TuneData, collate, prepare, train
from inlay.tune.folders import check_folder
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import new_model, random_rows, settings

ROWS = TuneData(random_rows(8), random_rows(3, seed=1), ())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "qwen3")


@pytest.fixture
def config(directory: Path, tmp_path: Path) -> TuneConfig:
    """Eight steps with dropout, whose losses depend on all that a checkpoint holds."""
    return settings(
        directory,
        tmp_path / "out",
        num_train_epochs=2.0,
        lora_dropout=0.2,
        save_steps=3,
        logging_steps=2,
        lr_scheduler_type="cosine",
        gradient_accumulation_steps=1,
    )


def losses(result: RunResult) -> list[float]:
    return [entry["loss"] for entry in result.log if "loss" in entry]


def run(config: TuneConfig, data: TuneData = ROWS, **options: Any) -> tuple[RunResult, list[str]]:
    lines: list[str] = []
    return train(config, data, say=lines.append, **options), lines


def test_micro_batches_change_nothing_that_is_learnt(directory: Path, tmp_path: Path) -> None:
    """The mean is over the tokens of a step, however many of them each micro-batch has."""
    data = TuneData(random_rows(8, shortest=5, longest=60), None, ())
    found = []
    for size in (4, 1):
        config = settings(
            directory,
            tmp_path / str(size),
            num_train_epochs=4.0,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=4 // size,
        )
        found.append(losses(run(config, data)[0]))
    assert len(found[0]) == 8
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_a_run_writes_its_files(config: TuneConfig) -> None:
    more = {"plot_loss": True, "eval_strategy": "steps", "do_eval": True}
    result, _ = run(replace(config, **more, include_num_input_tokens_seen=True))
    output = Path(config.output_dir)
    written = {file.name for file in output.iterdir()}
    assert written >= {
        "README.md", "adapter_config.json", "adapter_model.safetensors", "all_results.json",
        "chat_template.jinja", "checkpoint-3", "checkpoint-6", "checkpoint-8", "tokenizer.json",
        "train_results.json", "trainer_log.jsonl", "trainer_state.json", "training_eval_loss.png",
        "training_loss.png",
    }  # fmt: skip
    assert not [name for name in written if name.startswith(".")]
    lines = [json.loads(line) for line in (output / "trainer_log.jsonl").read_text().splitlines()]
    assert [line["current_steps"] for line in lines] == [2, 4, 6, 8]
    assert lines[-1]["percentage"] == 100 and lines[-1]["total_tokens"] == 2 * ROWS.train.num_tokens
    state = json.loads((output / "trainer_state.json").read_text())
    assert state["global_step"] == state["max_steps"] == 8
    assert [e["step"] for e in state["log_history"] if "eval_loss" in e] == [2, 4, 6, 8]
    assert losses(result)[-1] < losses(result)[0]
    results = json.loads((output / "all_results.json").read_text())
    assert results["eval_loss"] == state["log_history"][-1]["eval_loss"]
    assert "# LoRA adapter of tiny" in (output / "README.md").read_text()


def test_accuracy_is_the_share_of_tokens_that_are_the_likeliest(config: TuneConfig) -> None:
    model = new_model(Path(config.model_name_or_path))
    hits = tokens = 0
    for row in ROWS.evaluation or ():
        batch = collate([row])
        targets_T = torch.from_numpy(batch.targets_T).long()
        logits_TV = model.logits(
            torch.from_numpy(batch.input_ids_T).long(),
            torch.from_numpy(batch.positions_T).long(),
            batch.segment_starts_S.tolist(),
        )
        hits += int((logits_TV.argmax(-1) == targets_T)[targets_T >= 0].sum())
        tokens += batch.num_loss_tokens
    still = {"learning_rate": 1e-30, "max_steps": 1, "do_eval": True, "eval_strategy": "epoch"}
    result, _ = run(replace(config, **still, compute_accuracy=True))
    assert result.results["eval_accuracy"] == hits / tokens
    learned, _ = run(
        replace(config, overwrite_output_dir=True, do_eval=True, compute_accuracy=True),
        data=TuneData(ROWS.train, ROWS.train, ()),
    )
    assert learned.results["eval_accuracy"] > hits / tokens


def test_steps_may_be_shares_of_all(config: TuneConfig) -> None:
    shares = {"logging_steps": 0.5, "save_steps": 0.3, "eval_steps": 0.25}
    result, _ = run(replace(config, **shares, eval_strategy="steps", logging_first_step=True))
    assert [entry["step"] for entry in result.log if "loss" in entry] == [1, 4, 8]
    assert [entry["step"] for entry in result.log if "eval_loss" in entry] == [2, 4, 6, 8]
    checkpoints = {one.name for one in Path(config.output_dir).glob("checkpoint-*")}
    assert checkpoints == {"checkpoint-3", "checkpoint-6", "checkpoint-8"}
    assert (result.state["logging_steps"], result.state["save_steps"]) == (4, 3)


def test_an_epoch_that_is_cut_short_is_one(config: TuneConfig) -> None:
    by_epoch = {"eval_strategy": "epoch", "save_strategy": "epoch"}
    result, _ = run(replace(config, **by_epoch, max_steps=6, include_num_input_tokens_seen=True))
    assert [entry["step"] for entry in result.log if "eval_loss" in entry] == [4, 6]
    checkpoints = {one.name for one in Path(config.output_dir).glob("checkpoint-*")}
    assert checkpoints == {"checkpoint-4", "checkpoint-6"}
    seen = {entry["step"]: entry["num_input_tokens_seen"] for entry in result.log}
    assert seen[4] == ROWS.train.num_tokens
    assert seen[6] == result.results["num_input_tokens_seen"] > seen[4]
    assert result.results["eval_loss"] == result.log[-1]["eval_loss"]


@pytest.mark.parametrize(
    ("settings_in_vain", "words"),
    [
        ({"weight_format": "int8"}, "weight_format=int8 is of routed experts, of which there are"),
        ({"quantization_bit": 4}, "quantization_bit=4 is of routed experts, of which there are"),
        ({"kt_cpu_activation": "retain"}, "kt_cpu_activation=retain is of routed experts"),
        ({"compute_accuracy": True}, "compute_accuracy: nothing is evaluated"),
        ({}, "evaluation data are not looked at"),
        ({"do_eval": True, "eval_steps": 3}, "eval_steps has no effect with eval_strategy=no"),
        ({"lr_scheduler_type": "constant", "warmup_steps": 2}, "constant has no warmup"),
        (
            {"warmup_ratio": 0.5, "warmup_steps": 2},
            "warmup_ratio has no effect with warmup_steps=2",
        ),
        ({"save_strategy": "no", "save_total_limit": 2}, "no effect with save_strategy=no"),
    ],
)
def test_what_is_set_in_vain_has_a_line(
    settings_in_vain: dict[str, Any], words: str, config: TuneConfig
) -> None:
    assert words in "\n".join(prepare(replace(config, **settings_in_vain), ROWS).notes)


def test_weights_beside_experts_stay_in_the_dtype_of_the_run(
    config: TuneConfig, tmp_path: Path
) -> None:
    moe = make_tiny_model(tmp_path / "moe", "qwen3_moe")
    of_moe = replace(config, model_name_or_path=str(moe), do_eval=True, bf16=True)
    notes = prepare(replace(of_moe, weight_format="int8"), ROWS).notes
    assert notes == ("weight_format=int8 is of routed experts; all else is held in bfloat16",)
    assert prepare(replace(of_moe, weight_format="int8+bfloat16"), ROWS).notes == ()


def test_a_plain_run_has_no_lines(config: TuneConfig) -> None:
    assert prepare(replace(config, do_eval=True, weight_format="float32"), ROWS).notes == ()
    alone = TuneData(ROWS.train, None, ())
    assert prepare(config, alone).notes == ()
    assert "set val_size" in prepare(replace(config, do_eval=True), alone).notes[0]


def test_a_run_goes_on_with_the_same_losses(config: TuneConfig) -> None:
    whole, _ = run(config)
    output = Path(config.output_dir)
    for folder in ("checkpoint-8", "checkpoint-6"):
        shutil.rmtree(output / folder)
    resumed, lines = run(config)
    assert "going on from checkpoint-3" in lines
    assert resumed.log == whole.log  # all of it, bit for bit
    assert len((output / "trainer_log.jsonl").read_text().splitlines()) == 4


def test_damaged_checkpoints_are_left_out(config: TuneConfig) -> None:
    whole, _ = run(config)
    output = Path(config.output_dir)
    for folder, file in (("checkpoint-8", "optimizer"), ("checkpoint-6", "adapter_model")):
        damaged = output / folder / f"{file}.safetensors"
        content = bytearray(damaged.read_bytes())
        content[len(content) // 2] ^= 1
        damaged.write_bytes(content)
    resumed, lines = run(replace(config, resume_from_checkpoint="true"))
    assert [line.split(" is left out")[0] for line in lines if "left out" in line] == [
        "checkpoint-8",
        "checkpoint-6",
    ]
    assert "going on from checkpoint-3" in lines
    assert losses(resumed) == losses(whole)


def test_another_run_is_not_gone_on_with(config: TuneConfig) -> None:
    run(config)
    other = replace(config, learning_rate=2e-2)
    with pytest.raises(ConfigError, match="learning_rate .was 0.01, is 0.02"):
        run(other)
    anew, lines = run(replace(other, overwrite_output_dir=True))
    assert not [line for line in lines if "going on" in line]
    assert anew.results["epoch"] == 2.0


def test_a_longer_run_goes_on_where_its_rates_stay_the_same(
    config: TuneConfig, tmp_path: Path
) -> None:
    constant = replace(config, lr_scheduler_type="constant", warmup_steps=0)
    longer = replace(constant, num_train_epochs=2 * config.num_train_epochs)
    half, _ = run(constant)
    resumed, lines = run(longer)
    assert "going on from checkpoint-8" in lines
    whole, _ = run(replace(longer, output_dir=str(tmp_path / "whole")))
    assert losses(resumed) == losses(whole) and len(losses(whole)) > len(losses(half))
    with pytest.raises(ConfigError, match=r"steps .was 16, is 8"):
        run(constant)


def test_a_longer_run_with_other_rates_is_told_how_to_go_on(config: TuneConfig) -> None:
    run(config)
    longer = replace(config, num_train_epochs=2 * config.num_train_epochs)
    message = (
        r"steps .was 8, is 16.*; to go on from its adapter .*adapter_name_or_path=.*checkpoint-8 "
    )
    with pytest.raises(ConfigError, match=message):
        run(longer)
    with pytest.raises(ConfigError, match="learning_rate") as caught:
        run(replace(longer, learning_rate=2e-2))
    assert "adapter_name_or_path" not in str(caught.value)


def test_only_the_newest_checkpoints_are_kept(config: TuneConfig) -> None:
    run(replace(config, save_total_limit=2, save_only_model=True))
    output = Path(config.output_dir)
    assert sorted(one.name for one in output.glob("checkpoint-*")) == [
        "checkpoint-6",
        "checkpoint-8",
    ]
    assert not (output / "checkpoint-8" / "optimizer.safetensors").exists()
    with pytest.raises(Exception, match="save_only_model"):
        run(replace(config, resume_from_checkpoint=str(output / "checkpoint-8")))


def test_a_loss_that_is_not_finite_stops_the_run(config: TuneConfig) -> None:
    with pytest.raises(TrainingError, match=r"step \d of 8 .*rows .*checkpoint-\d") as caught:
        run(replace(config, learning_rate=1e30, max_grad_norm=0, lr_scheduler_type="constant"))
    folder = Path(str(caught.value).split("state before it is in ")[1].split(":")[0])
    check_folder(folder)


def test_routing_weights_that_are_not_finite_stop_the_run(
    config: TuneConfig, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "sparse", "qwen3_moe", num_hidden_layers=1)
    wild = replace(
        config, model_name_or_path=str(model), learning_rate=1e30, max_grad_norm=0,
        lr_scheduler_type="constant",
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"step \d of 8 has .*rows .*checkpoint-\d"):
        run(wild)
    broken = new_model(model)
    broken.weights.layers[0].parts["router"].fill_(torch.nan)
    ids_T = torch.arange(4)
    with pytest.raises(FloatingPointError, match="routing weights in layer 0"):
        broken.loss(ids_T, ids_T, [0, 4], ids_T)


@contextmanager
def small_files(limit_bytes: int) -> Iterator[None]:
    """No file may become larger, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_older_checkpoint(config: TuneConfig) -> None:
    whole, _ = run(replace(config, output_dir=config.output_dir + "-whole"))

    class FullAfter:
        def on_step(self, figures: Any) -> None:
            if figures.step == 4:
                full.__enter__()

    full = small_files(20_000)
    with pytest.raises(ResourceError, match="resume_from_checkpoint"):
        try:
            run(config, watchers=(FullAfter(),))
        finally:
            full.__exit__(None, None, None)
    output = Path(config.output_dir)
    assert [one.name for one in output.glob("*checkpoint*")] == ["checkpoint-3"]
    resumed, lines = run(replace(config, resume_from_checkpoint="true"))
    assert "going on from checkpoint-3" in lines
    assert losses(resumed) == losses(whole)


def test_a_run_that_is_asked_to_stop_goes_on_with_the_same_losses(config: TuneConfig) -> None:
    whole, _ = run(replace(config, output_dir=config.output_dir + "-whole"))
    answers = iter([False, False, False, True])
    with pytest.raises(TrainingError, match=r"after step 4 of 8; .*checkpoint-4: the same command"):
        run(config, stop=lambda: next(answers))
    resumed, lines = run(config)
    assert "going on from checkpoint-4" in lines
    assert resumed.log == whole.log
    anew = replace(config, overwrite_output_dir=True)
    with pytest.raises(TrainingError, match="with resume_from_checkpoint=true goes on"):
        run(anew, stop=lambda: True)


def test_the_log_is_curves_of_tensorboard(config: TuneConfig) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reported = replace(config, report_to="tensorboard", eval_strategy="steps", do_eval=True)
    result, _ = run(reported)
    shutil.rmtree(Path(config.output_dir) / "checkpoint-8")
    run(reported)  # goes on from step 6
    events = EventAccumulator(str(Path(config.output_dir) / "runs"))
    events.Reload()
    for tag, name in (("train/loss", "loss"), ("eval/loss", "eval_loss")):
        written = [(event.step, event.value) for event in events.Scalars(tag)]
        logged = [(e["step"], pytest.approx(e[name])) for e in result.log if name in e]
        assert written == logged


def test_tensorboard_that_is_not_there_is_said_before_anything_is_loaded(
    config: TuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="pip install tensorboard, or set report_to=none"):
        prepare(replace(config, report_to="tensorboard"), ROWS)


def test_a_run_that_learns_by_heart_is_told_what_to_set(config: TuneConfig) -> None:
    again = replace(config, num_train_epochs=12.0, eval_strategy="epoch", lora_dropout=0.0)
    _, lines = run(replace(again, learning_rate=3e-2, lr_scheduler_type="constant"))
    said = [line for line in lines if line.startswith("overfitting")]
    assert len(said) == 1
    assert "lora_dropout=0.1" in said[0] and "num_train_epochs=2" in said[0]


def test_an_adapter_is_trained_on(config: TuneConfig, tmp_path: Path) -> None:
    first, _ = run(config)
    adapter = (config.output_dir,)
    on, _ = run(replace(config, output_dir=str(tmp_path / "on"), adapter_name_or_path=adapter))
    assert losses(on)[0] < losses(first)[0]
    merged = replace(
        config, output_dir=str(tmp_path / "merged"), adapter_name_or_path=adapter * 2, seed=7
    )
    run(merged)
    with pytest.raises(Exception, match="set lora_rank"):
        run(
            replace(
                config, output_dir=str(tmp_path / "r"), adapter_name_or_path=adapter, lora_rank=2
            )
        )


def test_what_does_not_fit_is_refused_before_weights_are_loaded(
    config: TuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inlay.tune.run.free_memory_bytes", lambda: 1 << 20)
    config = replace(config, per_device_train_batch_size=8)
    advice = "set per_device_train_batch_size=1 and gradient_accumulation_steps=16"
    with pytest.raises(ResourceError, match=f"activations .* are there: {advice}"):
        prepare(config, ROWS)


def test_what_does_not_fit_on_the_disk_is_refused(
    config: TuneConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1 << 16))
    with pytest.raises(
        ResourceError, match="64.0 KiB left, .* two checkpoints of .* lower lora_rank"
    ):
        prepare(config, ROWS)


def test_rows_that_are_not_the_models(config: TuneConfig, tmp_path: Path) -> None:
    few = make_tiny_model(tmp_path / "few", "qwen3", vocab_size=400, tokenizer="none")
    with pytest.raises(DataError, match=r"token \d+ is in the data, .* 400 embeddings"):
        prepare(replace(config, model_name_or_path=str(few)), ROWS)
    short = make_tiny_model(tmp_path / "short", "qwen3", max_position_embeddings=12)
    notes = prepare(replace(config, model_name_or_path=str(short)), ROWS).notes
    assert "the model was made for 12: set cutoff_len=12" in "\n".join(notes)
