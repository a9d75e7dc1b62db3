"""What a run's settings may have wrong, each said before weights are loaded, and what to do."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from inlay.core.errors import ConfigError, InlayError
from inlay.models.conversion.convert import convert
from inlay.tune import TuneConfig, prepare, train
from inlay.tune.config_file import read_config
from inlay.tune.predictions import predict
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter

ROWS = [{"instruction": f"Define lantern {n}.", "output": "A light."} for n in range(10)]
RECORDS: dict[str, Any] = {
    "good.json": ROWS,
    "column.json": [{"instruction": "a"}],
    "empty.json": [*ROWS, {"instruction": "a", "output": " "}],
    "number.json": [{"instruction": "a", "output": 5}],
    "none.json": [],
    "utf16.json": json.dumps(ROWS).encode("utf-16"),
    "latin.json": '[{"instruction": "é", "output": "b"}]'.encode("latin-1"),
    "half.json": [{"instruction": "a\ud800", "output": "b"}],
    "deep.json": b"[" * 100_000,
    "broken.json": b'[{"instruction": "a"',
    "text.txt": b"a",
    "long.json": [{"instruction": "Define lantern. " * 99, "output": "A light. " * 99}],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data, adapters and a run that has ended, good ones and bad ones."""
    root = tmp_path_factory.mktemp("place")
    tiny = make_tiny_model(root / "tiny", "qwen3_moe")
    make_tiny_model(root / "dense", "qwen3")
    make_tiny_model(root / "sinks", "gpt_oss", tokenizer="none")
    convert(tiny, root / "packed", weight_format="int8")
    for name in ("cut", "lacks", "untold"):
        shutil.copytree(tiny, root / name)
    weights = root / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    tensors = load_file(tiny / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, root / "lacks" / "model.safetensors")
    (root / "untold" / "tokenizer.json").unlink()
    for name, content in RECORDS.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (root / name).write_bytes(data)
    info = {name.split(".")[0]: {"file_name": name} for name in (*RECORDS, "gone.json")}
    (root / "dataset_info.json").write_text(json.dumps(info))
    make_adapter(tiny, root / "adapter")
    make_adapter(tiny, root / "wide", rank=8)
    make_adapter(tiny, root / "narrow", targets=("q_proj",))
    make_adapter(root / "dense", root / "others")
    shutil.copytree(root / "adapter", root / "wordy")
    about = root / "wordy" / "adapter_config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "lora_alpha": "much"}))
    (root / "folder").mkdir()
    (root / "other").mkdir()
    (root / "other" / "trainer_state.json").write_text('{"global_step": 3}')
    train(settings(root, output_dir=root / "done"))
    train(settings(root, output_dir=root / "light", save_only_model=True))
    return root


def settings(place: Path, **changes: Any) -> TuneConfig:
    """Those of a good run, but for some; a text that begins with a slash is below `place`."""
    said: dict[str, Any] = {
        "model_name_or_path": "/tiny",
        "dataset": "good",
        "dataset_dir": place,
        "output_dir": place / "out",
        "lora_rank": 4,
        "max_steps": 2,
        "use_cpu": True,
        **changes,
    }
    below = {
        name: f"{place}{value}" if str(value)[:1] == "/" and isinstance(value, str) else value
        for name, value in said.items()
    }
    return read_config(None, [f"{name}={value}" for name, value in below.items()]).config


CASES: list[tuple[dict[str, Any], str]] = [
    # Data.
    (
        {"dataset": "column"},
        r"column.json, line 1, record 1: column output is missing .* columns of",
    ),
    (
        {"dataset": "empty"},
        r"empty.json, line 1, record 11: column output: is empty: a sample needs",
    ),
    ({"dataset": "number"}, r"column output: is 5: must be text"),
    ({"dataset": "none"}, r"none.json holds no records"),
    ({"dataset": "utf16"}, r"utf16.json is UTF-16 or UTF-32: save it as UTF-8"),
    ({"dataset": "latin"}, r"latin.json, line 1: is not UTF-8 \(byte 0xe9 at 18\): save it"),
    (
        {"dataset": "half"},
        r"half.json, line 1, record 1: .ud800 is half of a character: write the file",
    ),
    ({"dataset": "deep"}, r"deep.json: is no JSON that can be read .*recursion"),
    ({"dataset": "broken"}, r"broken.json, line 1: is no JSON .*column 21"),
    ({"dataset": "text"}, r"text.txt: must end in .json, .jsonl"),
    ({"dataset": "gone"}, r"dataset_info.json, gone: there is no file .*gone.json"),
    ({"dataset": "god"}, r"has no dataset 'god': did you mean good"),
    ({"dataset": "good,"}, r"dataset=good,: has an empty entry: take a comma away"),
    ({"dataset": "[]"}, r"dataset is not set: name what is trained on"),
    ({"dataset_dir": "/folder"}, r"dataset_info.json cannot be read: No such .* dataset_dir must"),
    ({"dataset": "long", "cutoff_len": 2}, r"no token of the 1 .* cutoff_len=2 may be too short"),
    ({"val_size": 10}, r"val_size=10 holds out 10 of 10 samples: both parts must have some"),
    (
        {"template": "llama3"},
        r"template=llama3 does not fit the model: its vocabulary lacks .*<.eot_id",
    ),
    ({"template": "qwen33"}, r"template=qwen33: .* did you mean qwen3"),
    # The model and what is trained on it.
    ({"model_name_or_path": "/nowhere"}, r"there is no model directory .*nowhere: give a dir"),
    ({"model_name_or_path": "/good.json"}, r"good.json is a file: give the directory"),
    ({"model_name_or_path": "/folder"}, r"has no config.json"),
    ({"model_name_or_path": "/cut"}, r"model.safetensors .* is cut off or damaged"),
    ({"model_name_or_path": "/lacks"}, r"the weights lack model.norm.weight"),
    ({"model_name_or_path": "/untold"}, r"has none of tokenizer.json"),
    ({"model_name_or_path": "/packed"}, r"packed weights, which are not trained on: name the"),
    ({"model_name_or_path": "/sinks"}, r"which `inlay tune` does not train: take a Llama"),
    ({"lora_target": "all,q_proj"}, r"lora_target=all,q_proj: all means q_proj, .*name it alone"),
    ({"lora_target": "query"}, r"'query' matches nothing .* q_proj, .*router, embedding and head"),
    ({"lora_target": "q_proj,"}, r"lora_target=q_proj,: has an empty entry"),
    ({"adapter_name_or_path": "/nowhere"}, r"holds no adapter_config.json"),
    ({"adapter_name_or_path": "/others"}, r"the adapter is another model's"),
    ({"adapter_name_or_path": "/wide"}, r"rank 8 and scale 2, the run rank 4 .*set lora_rank"),
    ({"adapter_name_or_path": "/narrow"}, r"has 2 adapted matrices .*set lora_target to what"),
    ({"adapter_name_or_path": "/wordy"}, r"has r 4 and lora_alpha much: r must be a whole"),
    ({"devices": "cuda:0"}, r"there is no cuda:0: 0 GPUs can be used"),
    ({"devices": "cpu=9"}, r"cpu=9 has 9 layers, the model 2: give each device its number"),
    (
        {"kt_optimize_rule": "/good.json"},
        r"kt_optimize_rule: .*has no key 'instruction'; there are match",
    ),
    # Where files are and go.
    ({"output_dir": "/good.json"}, r"output_dir=.*good.json: no file can be written there \(File"),
    ({"output_dir": "/good.json/out"}, r"no file can be written there \(Not a directory\): name"),
    ({"output_dir": r'"a\0b"'}, r"output_dir='a.x00b': has a zero byte"),
    (
        {"report_to": "tensorboard", "logging_dir": "/good.json"},
        r"logging_dir=.*good.json: no file can be written there",
    ),
    ({"resume_from_checkpoint": "/nowhere"}, r"nowhere: there is no such folder: name a check"),
    ({"resume_from_checkpoint": "/good.json"}, r"good.json: there is no such folder"),
    ({"resume_from_checkpoint": "/folder"}, r"is no checkpoint of inlay tune, or damaged"),
    ({"resume_from_checkpoint": "/other"}, r"other is no checkpoint of inlay tune, or damaged"),
    (
        {"resume_from_checkpoint": "/light/checkpoint-2"},
        r"has no moments .*save_only_model=true .*adapter_name_or_path takes",
    ),
    (
        {"resume_from_checkpoint": "/done/checkpoint-2", "lora_rank": 8},
        r"settings: lora_rank \(was 4, is 8\); to begin anew set overwrite_output_dir=true",
    ),
    (
        {"resume_from_checkpoint": "/done/checkpoint-2", "model_name_or_path": "/dense"},
        r"checkpoint-2 is of a run with other settings: model \(was",
    ),
    ({"output_dir": "/done", "seed": 7}, r"other settings: seed \(was 42, is 7\)"),
    # Values.
    ({"lora_rank": -1}, r"lora_rank=-1: must be at least 1 and at most 1024"),
    ({"lora_rank": "[1, 2]"}, r"lora_rank=1,2: must be a whole number"),
    ({"lora_rank": "9" * 5000}, r"lora_rank=9+: must be a whole number"),
    ({"lora_rank": "{a: 1}"}, r"lora_rank is a table: must be int"),
    ({"learning_rate": "inf"}, r"learning_rate=inf: must be finite and greater than 0"),
    ({"val_size": "inf"}, r"val_size=inf: must be finite and at least 0"),
    ({"num_train_epochs": "inf"}, r"num_train_epochs=inf: must be finite and greater than 0"),
    ({"warmup_steps": "inf"}, r"warmup_steps=inf: must be finite"),
    ({"save_steps": "1e400"}, r"save_steps=inf: must be finite"),
    ({"seed": 2**32}, r"seed=4294967296: must be at least 0 and at most 4.29497e\+09"),
    ({"bf16": "maybe"}, r"bf16=maybe: must be true or false"),
    ({"do_predict": True}, r"do_predict has nothing to answer: set eval_dataset or val_size"),
]


@pytest.mark.parametrize(("changes", "words"), CASES, ids=[str(case[0])[:60] for case in CASES])
def test_what_is_wrong_is_said_before_weights_are_loaded(
    changes: dict[str, Any], words: str, place: Path
) -> None:
    with pytest.raises(InlayError, match=words):
        prepare(settings(place, **changes))


def test_a_run_that_is_there_is_gone_on_with(place: Path) -> None:
    done = settings(place, output_dir="/done")
    assert prepare(done).begins_from == place / "done" / "checkpoint-2"
    anew = settings(place, output_dir="/done", overwrite_output_dir=True, seed=7)
    assert prepare(anew).begins_from is None
    named = settings(place, resume_from_checkpoint="/done/checkpoint-2")
    assert prepare(named).begins_from == place / "done" / "checkpoint-2"


def test_what_may_be_other_than_meant_has_a_line(place: Path) -> None:
    (note,) = prepare(settings(place, resume_from_checkpoint=True)).notes
    assert "has no good checkpoint to go on from: the run begins anew" in note
    (note,) = prepare(settings(place, warmup_steps=2)).notes
    assert note.startswith("warmup takes 2 of 2 steps: learning_rate=5e-05 is not reached")
    shutil.copytree(place / "adapter", place / "moved", dirs_exist_ok=True)
    about = place / "moved" / "adapter_config.json"
    renamed = {**json.loads(about.read_text()), "base_model_name_or_path": "org/another"}
    about.write_text(json.dumps(renamed))
    (note,) = prepare(settings(place, adapter_name_or_path="/moved")).notes
    assert "an adapter that was made for org/another, the model is" in note


def test_targets_may_not_be_empty(place: Path) -> None:
    assert settings(place, lora_target="[]").lora_target == ("all",)  # as where it is left out
    config = TuneConfig(model_name_or_path=str(place / "tiny"), lora_target=())
    with pytest.raises(ConfigError, match="lora_target is empty: name some of q_proj"):
        prepare(config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "model_name_or_path: m\nseed: 1\nseed: 2\n",
            "line 3 .*: seed is in line 2 as well: leave",
        ),
        ("model_name_or_path: m\nseed: 2020-13-45\n", "line 2 is no YAML: .*month must be in"),
        ("model_name_or_path: m\nseed: !!int\n", "line 2 is no YAML: int '' cannot be read"),
        ("model_name_or_path: m\nbf16: !!bool maybe\n", "line 2 is no YAML: bool 'maybe' cannot"),
        ("model_name_or_path: m\nseed: " + "[" * 3000, "is no YAML"),
    ],
)
def test_files_of_settings(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_config(file)


def test_answers_have_a_place_before_they_are_made(place: Path) -> None:
    held_out = {"val_size": 2, "model_name_or_path": "/tiny"}
    with pytest.raises(ConfigError, match="output_dir=.* no file can be written there"):
        predict(settings(place, **held_out, output_dir="/good.json"))
    (place / "folder" / "all_results.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"all_results.json holds a list, .*: remove it, or name"):
        predict(settings(place, **held_out, output_dir="/folder"))
