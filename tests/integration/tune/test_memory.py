"""The peak of a run's resident memory beside what is said before it: one copy of the weights."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import make_tiny_model
from tests.support.tree import ROOT

# Some 150 million weights, so that what allocators keep is little beside them.
SIZES: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_experts_per_tok": 4,
    "vocab_size": 16384,
    "max_position_embeddings": 1024,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 24, "head_dim": 64, "num_key_value_heads": 4},
    "deepseek_v2": {
        "n_routed_experts": 24, "num_key_value_heads": 16, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    },
}  # fmt: skip
_RUN = """
import json, sys
from pathlib import Path
import torch
from inlay import kernels
from inlay.tune import TuneData, prepare, train
from tests.support.tuning import random_rows, settings

torch.set_num_threads(1)
kernels.set_num_threads(1)
model, output = map(Path, sys.argv[1:3])
more = json.loads(sys.argv[3])
config = settings(
    model, output, max_steps=2, gradient_accumulation_steps=2, per_device_train_batch_size=1,
    save_strategy="no", **more,
)
data = TuneData(random_rows(4, shortest=128, longest=128, vocab=16384), None, ())
need = prepare(config, data).need.host.total
train(config, data)
# `ru_maxrss` would begin with what the process had that started this one.
status = Path("/proc/self/status").read_text()
peak = 1024 * int(status.split("VmHWM:")[1].split()[0])
print(json.dumps({"need": need, "peak": peak}))
"""


@pytest.mark.parametrize(
    "architecture, dtype, options",
    [
        ("qwen3_moe", "float32", {"lora_rank": 16}),
        ("qwen3_moe", "bfloat16", {"bf16": True, "weight_format": "int8", "lora_rank": 32}),
        ("deepseek_v2", "bfloat16", {"bf16": True, "disable_gradient_checkpointing": True}),
    ],
)
def test_memory_is_what_was_said(
    architecture: str, dtype: str, options: dict[str, Any], tmp_path: Path
) -> None:
    sizes = SIZES | MODELS[architecture]
    model = make_tiny_model(
        tmp_path / "model", architecture, dtype=dtype, tokenizer="none", **sizes
    )
    command = [sys.executable, "-c", _RUN, str(model), str(tmp_path / "out"), json.dumps(options)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["need"] == pytest.approx(found["peak"], rel=0.05), found
