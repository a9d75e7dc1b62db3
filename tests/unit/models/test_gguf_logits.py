"""GGUF files of every architecture: logits of what they hold, in chunks and token by token."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from inlay.models.gguf import gguf_directory
from inlay.models.model import load_model
from tests.support.gguf_files import gguf_and_floats
from tests.support.model_driver import ModelDriver
from tests.support.published_gguf import NAMES, write_published_gguf
from tests.unit.models.reference import load_reference, reference_logits, relative_error
from tests.unit.models.transformers_models import CASES as TRANSFORMERS_CASES
from tests.unit.models.transformers_models import make_transformers_model

TOLERANCE = 1e-4
PREFIX, DECODED = 26, 5
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64}  # Q4_K has blocks of 256
ODD = {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 224, "head_dim": 32}
LATENT = {"hidden_size": 96, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
FIVE_HEADS = {"num_attention_heads": 5, "num_key_value_heads": 5, "hidden_size": 160}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
DEEPSEEK_YARN = YARN | {"beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707}


@dataclass(frozen=True)
class Case:
    """A model, and how its file is written."""

    architecture: str
    kind: Type
    config: dict[str, Any] = field(default_factory=dict)
    file: dict[str, Any] = field(default_factory=dict)


CASES = {
    "llama": Case("llama", Type.Q4_K, WIDE),
    "llama_odd_heads": Case("llama", Type.Q4_0, ODD | {"tie_word_embeddings": False}),
    "llama_llama3": Case(
        "llama", Type.F32, {"attention_bias": True, "hidden_size": 56, "rope_scaling": LLAMA3}
    ),
    "mixtral": Case("mixtral", Type.Q4_K, WIDE),
    "mixtral_odd_heads": Case("mixtral", Type.Q8_0, ODD),
    "mixtral_floats": Case("mixtral", Type.F16, {"num_local_experts": 5, "hidden_size": 60}),
    "qwen2": Case("qwen2", Type.Q4_K, WIDE | {"tie_word_embeddings": False}),
    "qwen2_odd_heads": Case("qwen2", Type.Q8_0, ODD),
    "qwen3": Case("qwen3", Type.Q4_K, WIDE | {"tie_word_embeddings": False}),
    "qwen3_odd_heads": Case("qwen3", Type.Q8_0, ODD),
    "qwen3_yarn": Case("qwen3", Type.BF16, {"rope_scaling": YARN}),
    "qwen3_moe": Case("qwen3_moe", Type.Q4_K, WIDE | {"moe_intermediate_size": 256}),
    "qwen3_moe_odd_heads": Case("qwen3_moe", Type.Q4_0, ODD | {"num_experts": 5}),
    "qwen3_moe_floats": Case("qwen3_moe", Type.F32, {"moe_intermediate_size": 23}),
    "deepseek_v2": Case(
        "deepseek_v2", Type.Q8_0, LATENT | {"q_lora_rank": None, "rope_scaling": DEEPSEEK_YARN}
    ),
    "deepseek_v2_odd_heads": Case(
        "deepseek_v2", Type.Q4_0, LATENT | FIVE_HEADS, {"split_latent": False}
    ),
    "deepseek_v2_groups": Case(
        "deepseek_v2",
        Type.F32,
        {
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 3.0,
            "q_lora_rank": 20,
            "num_hidden_layers": 3,
        },
    ),
    "deepseek_v3": Case("deepseek_v3", Type.Q8_0, LATENT | {"rope_scaling": DEEPSEEK_YARN}),
    "deepseek_v3_odd_heads": Case(
        "deepseek_v3",
        Type.Q4_0,
        LATENT | FIVE_HEADS | {"tie_word_embeddings": False, "seed": 3},
        {"split_latent": False},
    ),
    "deepseek_v3_dense_first": Case(
        "deepseek_v3",
        Type.F32,
        {
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "first_k_dense_replace": 2,
            "num_hidden_layers": 4,
            "rope_scaling": DEEPSEEK_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
        {"drafting_layers": 1},
    ),
    "glm4_moe": Case("glm4_moe", Type.Q8_0, {"hidden_size": 96}),
    "glm4_moe_odd_heads": Case(
        "glm4_moe",
        Type.Q4_0,
        {
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "hidden_size": 96,
            "head_dim": 32,
            "tie_word_embeddings": False,
            "routed_scaling_factor": 1.5,
        },
        {"drafting_layers": 1},
    ),
    "glm4_moe_plain": Case(
        "glm4_moe",
        Type.F32,
        {
            "attention_bias": False,
            "use_qk_norm": False,
            "head_dim": 44,  # 30 / 44, times 44, is less than 30
            "partial_rotary_factor": 0.69,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 0,
        },
    ),
    "gpt_oss": Case(
        "gpt_oss",
        Type.Q8_0,
        {"hidden_size": 96, "intermediate_size": 64, "tie_word_embeddings": False},
        {"experts": Type.MXFP4},
    ),
    "gpt_oss_odd_heads": Case(
        "gpt_oss",
        Type.F16,
        ODD | {"intermediate_size": 32, "rope_scaling": YARN | {"truncate": False}},
        {"experts": Type.MXFP4},
    ),
    "gpt_oss_floats": Case(
        "gpt_oss", Type.F32, {"num_hidden_layers": 3, "sliding_window": 5, "intermediate_size": 23}
    ),
}


@pytest.fixture(params=CASES)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    case = CASES[request.param]
    config = {"architecture": case.architecture} | case.config
    return gguf_and_floats(tmp_path, case.kind, config, **case.file)


def test_chunks_and_decode(files: tuple[Path, Path]) -> None:
    directory, floats = files
    tokens = torch.randint(0, 512, (PREFIX + DECODED,), generator=torch.manual_seed(1)).tolist()
    expected = reference_logits(load_reference(floats), tokens)
    for backend in ("native", "torch"):
        model = load_model(directory, weight_format="float32", backend=backend)
        driver = ModelDriver(model)
        for chunks in ((), (1, 3), (7, 1, 13)):
            actual = driver.prefill(tokens[:PREFIX], chunks)
            assert relative_error(actual, expected[:PREFIX]) < TOLERANCE, (backend, chunks)
        sequence = driver.add(tokens)
        driver.step([(sequence, PREFIX)])
        for position in range(PREFIX, len(tokens)):
            (logits,) = driver.step([(sequence, 1)])
            wanted = expected[position : position + 1]
            assert relative_error(logits, wanted) < TOLERANCE, (backend, position)


# What the format has no key for is always so in its files.
UNSAID: dict[str, dict[str, Any]] = {
    "gemma2": {"query_pre_attn_scalar": 24, "tie_word_embeddings": True},
    "gemma3_text": {"query_pre_attn_scalar": 24},
    "smollm3": {"no_rope_layer_interval": 4},
}
PUBLISHED = [case for case in TRANSFORMERS_CASES if case.partition("_long")[0] in NAMES]


@pytest.mark.parametrize("case", PUBLISHED)
def test_files_of_published_architectures(case: str, tmp_path: Path) -> None:
    source = make_transformers_model(tmp_path / "source", case, **UNSAID.get(case, {}))
    write_published_gguf(source, tmp_path / "model.gguf")
    directory = gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache")
    tokens = torch.randint(0, 512, (PREFIX + DECODED,), generator=torch.manual_seed(1)).tolist()
    expected = reference_logits(load_reference(source), tokens)
    for backend in ("native", "torch"):
        model = load_model(directory, weight_format="float32", backend=backend)
        actual = ModelDriver(model).prefill(tokens, (7, 13))
        assert relative_error(actual, expected) < TOLERANCE, backend


def test_config_is_read_by_others(files: tuple[Path, Path]) -> None:
    """What `inlay convert --to bf16` takes over means the same to `transformers`."""
    directory, floats = files
    tokens = list(range(40, 52))
    expected = reference_logits(load_reference(floats), tokens)
    config = json.loads((directory / "config.json").read_text())
    config.pop("quantization_config")
    (floats / "config.json").write_text(json.dumps(config))
    assert relative_error(reference_logits(load_reference(floats), tokens), expected) < 1e-5
