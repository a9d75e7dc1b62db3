"""`inlay tune` from one YAML file to a merged model that `inlay serve` answers with."""

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.support.server import running_server
from tests.support.tiny_models import make_tiny_model

TUNE = [sys.executable, "-c", "from inlay.serve.cli import main; main()", "tune"]
# The blocks of a published tutorial, joined, as they are; the model and the data are this test's.
TUTORIAL = """
model_name_or_path: model
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


def tune(*arguments: str, folder: Path, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*TUNE, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_from_a_file_to_a_served_model(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", "deepseek_v3", initializer_range=0.1)
    data, merged = tmp_path / "data", tmp_path / "merged"
    data.mkdir()
    question = {"instruction": "Who are you?", "input": "", "output": "a lamp"}
    (data / "identity.json").write_text(json.dumps([question] * 24))
    (data / "dataset_info.json").write_text('{"identity": {"file_name": "identity.json"}}')
    (tmp_path / "run.yaml").write_text(TUTORIAL)

    dry = tune("train", "run.yaml", "--dry-run", folder=tmp_path)
    assert dry.returncode == 0, dry.stderr
    assert "9 steps of 1 x 8 rows" in dry.stdout and "use_kt:" in dry.stderr
    assert "kt_optimize_rule: there is no file" in dry.stderr
    output = tmp_path / "saves" / "Kllama_deepseekV3"
    assert not (output / "adapter_model.safetensors").exists()

    trained = tune("train", "run.yaml", folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert (output / "adapter_model.safetensors").exists()
    # Rates and rows are for large models; this one is to know the answer by heart.
    more = ["learning_rate=1e-2", "num_train_epochs=8", "logging_steps=1", "template=null"]
    trained = tune("train", "run.yaml", *more, folder=tmp_path)
    assert trained.returncode == 0, trained.stderr
    log = (output / "trainer_log.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in log]
    assert losses[-1] < 0.2 * losses[0]
    assert (output / "training_loss.png").read_bytes().startswith(b"\x89PNG")

    adapter = f"adapter_name_or_path={output}"
    more = [adapter, "template=null", "eval_dataset=identity", "max_samples=3"]
    scored = tune("predict", "run.yaml", *more, folder=tmp_path)
    assert scored.returncode == 0, scored.stderr
    assert "bleu-char-4: 100.0" in scored.stdout and "has 3 answers" in scored.stdout
    more = [adapter, "max_new_tokens=8", "--both"]
    talk = tune("chat", "run.yaml", *more, folder=tmp_path, stdin="Who are you?\n")
    assert talk.returncode == 0, talk.stderr
    before, after = talk.stdout.split("after:\n")
    assert before.startswith("before:\n") and "a lamp" not in before
    assert after.startswith("a lamp\n")

    names = [f"adapter_name_or_path={output}", f"export_dir={merged}"]
    exported = tune("export", "run.yaml", *names, folder=tmp_path)
    assert exported.returncode == 0, exported.stderr
    with (
        running_server(merged) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="-") as client,
    ):
        answer = client.chat.completions.create(
            model=str(merged),
            messages=[{"role": "user", "content": "Who are you?"}],
            temperature=0,
            max_tokens=16,
        )
    assert answer.choices[0].message.content == "a lamp"


# `inlay tune`, and who sits in front of it presses Ctrl-C during the fourth step.
INTERRUPTED = """
import signal
from inlay.serve.cli import main
from inlay.tune import progress

class Impatient(progress.RunProgress):
    def on_step(self, figures):
        super().on_step(figures)
        if figures.step == 4:
            signal.raise_signal(signal.SIGINT)

progress.RunProgress = Impatient
main()
"""


@pytest.mark.timeout(300)  # three processes
def test_ctrl_c_keeps_the_steps_that_are_done(tmp_path: Path) -> None:
    make_tiny_model(tmp_path / "model", num_hidden_layers=1)
    question = [{"instruction": f"Count to {n}.", "output": "one two " * n} for n in range(1, 9)]
    (tmp_path / "count.json").write_text(json.dumps(question))
    (tmp_path / "dataset_info.json").write_text('{"count": {"file_name": "count.json"}}')
    (tmp_path / "run.yaml").write_text(
        "{model_name_or_path: model, dataset: count, dataset_dir: ., num_train_epochs: 3,"
        " per_device_train_batch_size: 2, logging_steps: 1, lora_dropout: 0.1, use_cpu: true}"
    )
    whole = tune("train", "run.yaml", "output_dir=whole", folder=tmp_path)
    assert whole.returncode == 0, whole.stderr

    begin = [sys.executable, "-c", INTERRUPTED, "tune", "train", "run.yaml", "output_dir=parts"]
    stopped = subprocess.run(begin, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert stopped.returncode == 130, stopped.stderr
    assert "stopping after this step, with a checkpoint" in stopped.stderr
    assert "the same command goes on from it" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert not (tmp_path / "parts" / "adapter_model.safetensors").exists()
    (checkpoint,) = (tmp_path / "parts").glob("checkpoint-*")
    assert checkpoint.name == "checkpoint-4"

    resumed = tune("train", "run.yaml", "output_dir=parts", folder=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "going on from checkpoint-4" in resumed.stderr
    states = [
        json.loads((tmp_path / folder / "trainer_state.json").read_text())["log_history"]
        for folder in ("whole", "parts")
    ]
    assert len(states[0]) >= 12
    assert states[0] == states[1]
    adapters = [
        (tmp_path / f / "adapter_model.safetensors").read_bytes() for f in ("whole", "parts")
    ]
    assert adapters[0] == adapters[1]


def test_mistakes_are_found_before_training(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", "qwen3")
    (tmp_path / "one.json").write_text(json.dumps([{"instruction": "a", "output": "b"}]))
    config = tmp_path / "run.yaml"
    config.write_text(
        f"model_name_or_path: {model}\ndataset: {tmp_path / 'one.json'}\n"
        f"output_dir: {tmp_path / 'out'}\n"
    )
    wrong = tune("train", str(config), "--dry-run", "lora_target=query", folder=tmp_path)
    assert wrong.returncode == 2
    assert "'query' matches nothing" in wrong.stderr and "q_proj" in wrong.stderr
