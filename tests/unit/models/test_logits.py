"""Logits equal to `transformers` for each architecture, however the tokens are computed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inlay.models.model import Model, load_model
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.unit.models.reference import (
    load_reference,
    reference_greedy,
    reference_logits,
    relative_error,
)
from tests.unit.models.transformers_models import CASES as TRANSFORMERS_CASES
from tests.unit.models.transformers_models import make_transformers_model

TOLERANCE = 1e-4

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

DEEPSEEK_YARN = YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1}

CASES: dict[str, dict[str, Any]] = {
    "deepseek_v2": {"architecture": "deepseek_v2"},
    "deepseek_v2_groups": {
        "architecture": "deepseek_v2",
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 3.0,
        "q_lora_rank": 20,
        "rope_scaling": DEEPSEEK_YARN,
        "expert_names": "fused",
    },
    "deepseek_v2_odd_heads": {
        "architecture": "deepseek_v2",
        "num_attention_heads": 7,
        "num_key_value_heads": 7,
        "hidden_size": 70,
        "tie_word_embeddings": False,
    },
    "deepseek_v3": {"architecture": "deepseek_v3", "seed": 1},
    "deepseek_v3_odd_heads": {
        "architecture": "deepseek_v3",
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "hidden_size": 65,
        "attention_bias": True,
        "n_group": 1,
        "topk_group": 1,
        "num_hidden_layers": 3,
        "shards": 2,
    },
    "deepseek_v3_yarn": {
        "architecture": "deepseek_v3",
        "q_lora_rank": None,
        "rope_scaling": DEEPSEEK_YARN,
        "first_k_dense_replace": 0,
        "norm_topk_prob": False,
    },
    "glm4_moe": {"architecture": "glm4_moe"},
    "glm4_moe_plain": {
        "architecture": "glm4_moe",
        "attention_bias": False,
        "use_qk_norm": False,
        "routed_scaling_factor": 1.5,
        "n_group": 2,
        "topk_group": 1,
        "tie_word_embeddings": False,
    },
    "glm4_moe_odd_heads": {
        "architecture": "glm4_moe",
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "hidden_size": 72,
        "first_k_dense_replace": 0,
        "expert_names": "fused",
    },
    "gpt_oss": {"architecture": "gpt_oss"},
    "gpt_oss_odd_heads": {
        "architecture": "gpt_oss",
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "hidden_size": 42,
        "tie_word_embeddings": False,
        "rope_scaling": YARN_ROPE | {"truncate": False},
    },
    "gpt_oss_layers": {
        "architecture": "gpt_oss",
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "sliding_window": 5,
        "intermediate_size": 23,
        "swiglu_limit": 1.5,
    },
    "llama": {"architecture": "llama"},
    "llama_untied_bias": {
        "architecture": "llama",
        "tie_word_embeddings": False,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama_no_head_dim": {
        "architecture": "llama",
        "head_dim": ...,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    },
    "llama_llama3": {"architecture": "llama", "rope_scaling": LLAMA3_ROPE},
    "llama_linear": {
        "architecture": "llama",
        "rope_scaling": {"type": "linear", "factor": 2.0},
    },
    "llama_yarn": {"architecture": "llama", "rope_scaling": YARN_ROPE},
    "llama_rope_parameters": {
        "architecture": "llama",
        "rope_scaling": ...,
        "rope_theta": ...,
        "rope_parameters": YARN_ROPE
        | {"rope_theta": 5000.0, "beta_fast": 16, "mscale": 0.7, "mscale_all_dim": 1.1},
    },
    "mistral": {"architecture": "mistral"},
    "mistral_window": {"architecture": "mistral", "sliding_window": 19},
    "qwen2": {"architecture": "qwen2"},
    "qwen2_odd_heads": {
        "architecture": "qwen2",
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "hidden_size": 56,
        "tie_word_embeddings": False,
    },
    "qwen2_window": {
        "architecture": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 11,
        "max_window_layers": 1,
        "num_hidden_layers": 3,
    },
    "qwen3": {"architecture": "qwen3"},
    "qwen3_odd_heads": {
        "architecture": "qwen3",
        "num_attention_heads": 7,
        "num_key_value_heads": 1,
        "hidden_size": 48,
        "head_dim": 24,
        "tie_word_embeddings": False,
    },
    "qwen3_window": {
        "architecture": "qwen3",
        "use_sliding_window": True,
        "sliding_window": 11,
        "max_window_layers": 1,
        "num_hidden_layers": 3,
    },
    "mixtral": {"architecture": "mixtral"},
    "mixtral_odd_heads": {
        "architecture": "mixtral",
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "hidden_size": 80,
        "intermediate_size": 37,
        "num_hidden_layers": 3,
        "tie_word_embeddings": False,
    },
    "mixtral_window": {
        "architecture": "mixtral",
        "sliding_window": 11,
        "num_local_experts": 2,
        "head_dim": ...,
        "shards": 3,
    },
    "qwen3_moe": {"architecture": "qwen3_moe"},
    "qwen3_moe_mixed": {
        "architecture": "qwen3_moe",
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        "norm_topk_prob": False,
        "num_experts": 5,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "head_dim": 32,
        "moe_intermediate_size": 23,
        "tie_word_embeddings": False,
        "expert_names": "fused",
    },
    "qwen3_moe_yarn": {
        "architecture": "qwen3_moe",
        "rope_scaling": YARN_ROPE | {"truncate": False},
        "shards": 3,
    },
}
BACKENDS = ("torch", "native")


class Case:
    """A random model, and what `transformers` makes of token sequences."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._reference = load_reference(directory)
        self._logits: dict[tuple[int, ...], torch.Tensor] = {}
        self.prompt = tokens_of(11, seed=6)
        self.greedy = reference_greedy(self._reference, self.prompt, 64)

    def logits(self, tokens: list[int]) -> torch.Tensor:
        """Logits of a whole pass."""
        key = tuple(tokens)
        if key not in self._logits:
            self._logits[key] = reference_logits(self._reference, tokens)
        return self._logits[key]


@pytest.fixture(scope="module", params=[*CASES, *TRANSFORMERS_CASES])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param in TRANSFORMERS_CASES:
        return Case(make_transformers_model(directory, request.param))
    return Case(make_tiny_model(directory, tokenizer="none", **CASES[request.param]))


@pytest.fixture(scope="module", params=BACKENDS)
def model(request: pytest.FixtureRequest, case: Case) -> Model:
    return load_model(case.directory, backend=request.param)


def tokens_of(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 512, (count,), generator=generator).tolist()


def test_prefill_in_chunks(case: Case, model: Model) -> None:
    tokens = tokens_of(50, seed=1)
    driver = ModelDriver(model)
    for chunks in ((), (1, 3), (7, 1, 13), (33, 16)):
        actual = driver.prefill(tokens, chunks)
        assert relative_error(actual, case.logits(tokens)) < TOLERANCE, chunks


def test_decode_after_prefix_hits(case: Case, model: Model) -> None:
    prefix = tokens_of(40, seed=2)
    driver = ModelDriver(model, page_tokens=8)
    first = driver.add(prefix + tokens_of(3, seed=3))
    driver.step([(first, len(first.tokens))])
    for seed in (4, 5):
        tokens = prefix + tokens_of(9, seed=seed)
        hit = driver.add(tokens, shared_with=first)
        assert hit.computed == 40 and hit.pages == first.pages[:5]
        expected = case.logits(tokens)
        (start,) = driver.step([(hit, 5)], all_rows=True)
        assert relative_error(start, expected[40:45]) < TOLERANCE
        for position in range(45, 49):
            (logits,) = driver.step([(hit, 1)])
            assert relative_error(logits, expected[position : position + 1]) < TOLERANCE


def test_batches_of_mixed_lengths(case: Case, model: Model) -> None:
    lengths = (1, 50, 17, 33, 2)
    driver = ModelDriver(model)
    sequences = [driver.add(tokens_of(n + 3, seed=n)) for n in lengths]
    expected = [case.logits(sequence.tokens) for sequence in sequences]
    results = driver.step(list(zip(sequences, lengths, strict=True)))
    for n, logits, want in zip(lengths, results, expected, strict=True):
        assert relative_error(logits, want[n - 1 : n]) < TOLERANCE
    # Prefill of one beside decodes of the others, then decodes alone.
    for step, counts in enumerate([(1, 1, 2, 1, 1), (1, 1, 1, 1, 1)]):
        results = driver.step(list(zip(sequences, counts, strict=True)))
        for sequence, logits, want in zip(sequences, results, expected, strict=True):
            at = sequence.computed - 1
            assert relative_error(logits, want[at : at + 1]) < TOLERANCE, step


def test_greedy_text(case: Case, model: Model) -> None:
    assert len(set(case.greedy)) > 16
    assert ModelDriver(model).greedy(case.prompt, 64) == case.greedy


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_files_in_float32(tmp_path: Path, dtype: str, backend: str) -> None:
    """Weights are widened exactly, so float32 arithmetic on them must agree."""
    directory = make_tiny_model(tmp_path, tokenizer="none", dtype=dtype)
    tokens = tokens_of(40, seed=7)
    expected = reference_logits(load_reference(directory), tokens)
    model = load_model(directory, backend=backend, weight_format="float32")
    assert relative_error(ModelDriver(model).prefill(tokens, (13,)), expected) < TOLERANCE
    auto = load_model(directory, backend=backend)
    assert auto.weight_format == ("float32" if (backend, dtype) == ("torch", "float16") else dtype)
    if dtype == "float16":  # activations are float32
        assert relative_error(ModelDriver(auto).prefill(tokens, (13,)), expected) < TOLERANCE


@pytest.mark.parametrize("architecture", ["qwen3_moe", "llama"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_bfloat16(tmp_path: Path, architecture: str, backend: str) -> None:
    """Beside a reference that rounds what goes into each product, as the kernels do.

    Sums in another order can turn a rounding the other way, for a few in 100,000 activations:
    that moves one of 64 inputs of a product by a 256th, and its row's logits by less than that.
    """
    directory = make_tiny_model(tmp_path, architecture, tokenizer="none", dtype="bfloat16")
    tokens = tokens_of(40, seed=7)
    expected = reference_logits(load_reference(directory), tokens, rounded=torch.bfloat16)
    model = load_model(directory, backend=backend)
    actual = ModelDriver(model, dtype="float32").prefill(tokens, (13,))
    errors = [relative_error(one, other) for one, other in zip(actual, expected, strict=True)]
    assert float(np.median(errors)) < 1e-6
    assert max(errors) < 2**-8
