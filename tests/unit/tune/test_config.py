import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import inlay.tune
from inlay.core.errors import ConfigError
from inlay.tune import TuneConfig
from inlay.tune.config import TUNE_KEYS
from inlay.tune.config_file import ReadConfig, known_keys, read_config
from inlay.tune.other_keys import ALIASES, IDLE_KEYS, REFUSED_KEYS
from tests.support.tree import ROOT

# The blocks of a published tutorial, joined; model path and data set are changed.
TUTORIAL = """
model_name_or_path: models/mine
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all
dataset: identity
template: deepseek
cutoff_len: 2048
max_samples: 100000
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4
output_dir: saves/Kllama_deepseekV3
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
use_kt: true
kt_optimize_rule: examples/kt_optimize_rules/DeepSeek-V3-Chat-sft-amx-multi-gpu.yaml
cpu_infer: 32
chunk_size: 8192
"""


def read(tmp_path: Path, text: str, *arguments: str) -> ReadConfig:
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return read_config(file, arguments)


def refusal(tmp_path: Path, *arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, TUTORIAL, *arguments)
    return str(caught.value)


def test_the_tutorials_file_is_understood_key_by_key(tmp_path: Path) -> None:
    found = read(tmp_path, TUTORIAL)
    assert found.config == TuneConfig(
        model_name_or_path="models/mine",
        dataset=("identity",),
        template="deepseek",
        max_samples=100_000,
        output_dir="saves/Kllama_deepseekV3",
        logging_steps=10,
        plot_loss=True,
        overwrite_output_dir=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=8,
        learning_rate=1e-4,
        lr_scheduler_type="cosine",
        warmup_ratio=0.1,
        bf16=True,
        cpu_infer=32,
        kt_optimize_rule="examples/kt_optimize_rules/DeepSeek-V3-Chat-sft-amx-multi-gpu.yaml",
    )
    assert list(found.idle) == [
        "trust_remote_code",
        "do_train",
        "overwrite_cache",
        "preprocessing_num_workers",
        "dataloader_num_workers",
        "ddp_timeout",
        "use_kt",
        "chunk_size",
    ]
    assert set(yaml.safe_load(TUTORIAL)) <= set(known_keys())


def test_arguments_go_before_the_file(tmp_path: Path) -> None:
    config = read(
        tmp_path, TUTORIAL, "lora_rank=16", "learning_rate=2e-5", "dataset=a, b", "template=null"
    ).config
    assert (config.lora_rank, config.learning_rate) == (16, 2e-5)
    assert (config.dataset, config.template) == (("a", "b"), None)
    assert config.lora_scale == 2.0
    assert read(tmp_path, TUTORIAL, "lora_alpha=8", "use_rslora=true").config.lora_scale == (
        pytest.approx(8 / 8**0.5)
    )


def test_yaml_reads_no_as_false_and_small_numbers_as_text(tmp_path: Path) -> None:
    text = "model_name_or_path: m\neval_strategy: no\nlearning_rate: 1e-5\nreport_to: [none]\n"
    config = read(tmp_path, text + "lora_target: [q_proj, v_proj]\nsave_steps: 0.1\n").config
    assert (config.eval_strategy, config.learning_rate) == ("no", 1e-5)
    assert config.lora_target == ("q_proj", "v_proj")
    assert config.save_steps == 0.1


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("lora_rnak=8", ["lora_rnak", "did you mean lora_rank"]),
        ("lora_rank=0", ["lora_rank=0", "at least 1 and at most 1024"]),
        ("lora_rank=many", ["lora_rank=many", "a whole number"]),
        ("lora_dropout=1", ["lora_dropout=1", "less than 1"]),
        ("learning_rate=nan", ["learning_rate=nan", "greater than 0"]),
        ("stage=dpo", ["stage=dpo", "must be sft"]),
        ("report_to=wandb", ["report_to=wandb", "none or tensorboard", "trainer_log.jsonl"]),
        ("report_to=all", ["report_to=all", "none or tensorboard", "others are not here"]),
        ("lr_scheduler_type=cosin", ["linear or cosine or constant"]),
        ("use_dora=true", ["use_dora=True", "False", "plain LoRA"]),
        ("fp16=true", ["fp16", "bf16"]),
        ("mix_strategy=interleave_under", ["concat"]),
        ("weight_format=int3", ["weight_format=int3", "int4:g32"]),
        ("quantization_bit=3", ["quantization_bit=3", "4 or 8"]),
        ("val_size=1.5", ["val_size=1.5", "a whole number, or a share"]),
        ("max_steps=0", ["max_steps=0", "-1"]),
        ("kt_config.kt_backend=AMXBF16_SkipLoRA", ["kt_backend", "amxbf16"]),
        ("lora_rank", ["write key=value"]),
    ],
)
def test_what_is_wrong_is_said_with_what_is_right(
    argument: str, words: list[str], tmp_path: Path
) -> None:
    message = refusal(tmp_path, argument)
    assert all(word in message for word in words), message


def test_values_that_exclude_each_other(tmp_path: Path) -> None:
    assert "held out or others" in refusal(tmp_path, "val_size=0.1", "eval_dataset=x")
    assert "the same thing" in refusal(tmp_path, "quantization_bit=8", "weight_format=int4")
    with pytest.raises(ConfigError, match="model_name_or_path is missing"):
        read(tmp_path, "dataset: x")
    with pytest.raises(ConfigError, match="lora_rank=2000"):
        TuneConfig(model_name_or_path="m", lora_rank=2000)


def test_refused_keys_may_ask_for_nothing(tmp_path: Path) -> None:
    text = "\n".join(
        f"{name}: {'null' if key.default is None else str(key.default).lower()}"
        for name, key in REFUSED_KEYS.items()
    )
    assert read(tmp_path, "model_name_or_path: m\n" + text).config.lora_rank == 8


def test_both_generations_of_ktransformers_keys(tmp_path: Path) -> None:
    text = """
model_name_or_path: m
kt_cpu_activation: retain
kt_weight_path: /weights
kt_config:
  kt_backend: AMXINT8
  kt_expert_weight_format: int8
  num_threads: 12
  kt_tp_enabled: true
  threadpool_count: 2
  kt_share_backward_bb: true
"""
    found = read(tmp_path, text)
    assert found.config.weight_format == "int8+bfloat16"
    assert (found.config.cpu_infer, found.config.kt_cpu_activation) == (12, "retain")
    assert set(found.idle) == {
        "kt_weight_path", "kt_tp_enabled", "kt_threadpool_count", "kt_share_backward_bb",
    }  # fmt: skip
    assert read(tmp_path, text, "weight_format=auto").config.base_format == "auto"
    with pytest.raises(ConfigError, match="disagree: give one"):
        read(tmp_path, text, "kt_config.kt_backend=FP8")
    with pytest.raises(ConfigError, match="must be a table"):
        read(tmp_path, "model_name_or_path: m\nkt_config: 3")


def test_weights_quantised_at_load() -> None:
    config = TuneConfig(model_name_or_path="m", quantization_bit=4)
    assert config.base_format == "int4:g32"


@pytest.mark.parametrize(
    ("changes", "samples"),
    [
        ((), False),
        (("temperature=0.5",), True),
        (("top_k=3",), True),
        (("do_sample=false", "top_p=0.5"), False),
        (("do_sample=true",), True),
    ],
)
def test_answers_are_the_likeliest_unless_tokens_are_to_be_drawn(
    changes: tuple[str, ...], samples: bool, tmp_path: Path
) -> None:
    assert read(tmp_path, TUTORIAL, *changes).config.samples is samples


def _attributes_read() -> set[str]:
    """Names of settings that the package takes of one.

    What `__post_init__` of the settings reads is a check, and no use.
    """
    found: set[str] = set()
    for file in Path(inlay.tune.__path__[0]).rglob("*.py"):
        for node in _nodes(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                whose = ast.unparse(node.value)
                if whose.endswith("config") or (file.name == "config.py" and whose == "self"):
                    found.add(node.attr)
    return found


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef) and child.name == "__post_init__"):
            yield child
            yield from _nodes(child)


ONE_MEANING = {"stage", "finetuning_type", "optim"}
"""Settings whose allowed values all mean what is done in any case."""


def test_each_setting_is_read_or_can_only_mean_what_is_done() -> None:
    assert set(TUNE_KEYS) - _attributes_read() == ONE_MEANING
    for name in ONE_MEANING:
        with pytest.raises(ConfigError, match=f"{name}=other: must be .*{TUNE_KEYS[name].why_not}"):
            TUNE_KEYS[name].check("other")


def test_files_that_are_no_settings(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    with pytest.raises(ConfigError, match=r"bad.yaml cannot be read: No such file"):
        read_config(file)
    file.write_bytes(b"a: \xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_config(file)
    with pytest.raises(ConfigError, match="line 3 is no YAML"):
        read(tmp_path, "a: 1\nb: [1\n")
    with pytest.raises(ConfigError, match="no table of keys"):
        read(tmp_path, "- a\n")


def test_a_key_is_in_one_table() -> None:
    tables = [TUNE_KEYS, ALIASES, IDLE_KEYS, REFUSED_KEYS]
    assert len(known_keys()) == sum(map(len, tables))
    assert all(key.does for key in known_keys().values())


def test_defaults_are_allowed_and_of_their_type() -> None:
    for name, key in known_keys().items():
        if name != "model_name_or_path" and key.default is not None:
            assert key.read(key.default) == key.default, name
            key.check(key.default)


def test_the_page_of_keys_has_them_all() -> None:
    page = (ROOT / "docs" / "guides" / "finetune-keys.md").read_text("utf-8")
    parts = {part.splitlines()[0]: part for part in page.split("\n## ")}
    for title, keys in (
        ("Honoured", TUNE_KEYS),
        ("Other names of these", ALIASES),
        ("Read, without effect", IDLE_KEYS),
        ("Refused, unless their value asks for nothing", REFUSED_KEYS),
    ):
        listed = parts[title].split("Inlay's own")[0]
        assert set(re.findall(r"`(\w+)`", listed)) == set(keys), title
    assert set(yaml.safe_load(TUTORIAL)) <= set(re.findall(r"`(\w+)`", parts["A published file"]))
