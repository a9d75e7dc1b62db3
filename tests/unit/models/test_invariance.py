"""On the CPU backend a token's logits are the same bits however they are computed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from inlay import kernels
from inlay.models.model import Model, load_model
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model

CASES: dict[str, dict[str, Any]] = {
    "moe_bf16": {"architecture": "qwen3_moe", "dtype": "bfloat16"},
    "moe_f32": {"architecture": "qwen3_moe", "num_attention_heads": 6, "head_dim": 24},
    "dense_bf16": {"architecture": "llama", "dtype": "bfloat16", "attention_bias": True},
    "window": {"architecture": "mistral", "sliding_window": 9},
    "moe_int8": {"architecture": "qwen3_moe", "weight_format": "int8"},
    "moe_int8_g32": {"architecture": "qwen3_moe", "weight_format": "int8:g32"},
    "moe_int4": {"architecture": "qwen3_moe", "dtype": "bfloat16", "weight_format": "int4"},
    "dense_int4_g128": {"architecture": "llama", "weight_format": "int4:g128"},
}


@pytest.fixture(scope="module", params=CASES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    directory = tmp_path_factory.mktemp(request.param)
    options = dict(CASES[request.param])
    weight_format = options.pop("weight_format", "auto")
    made = make_tiny_model(directory, tokenizer="none", **options)
    return load_model(made, weight_format=weight_format)


def tokens_of(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 512, (count,), generator=generator).tolist()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def test_chunks_and_pages(model: Model) -> None:
    tokens = tokens_of(150, seed=1)
    whole = ModelDriver(model).prefill(tokens)
    for chunks in ((1,), (5, 64, 3), (100,)):
        assert same_bits(ModelDriver(model).prefill(tokens, chunks), whole), chunks
    assert same_bits(ModelDriver(model, page_tokens=32).prefill(tokens, (17,)), whole)


def test_batches(model: Model) -> None:
    """Prefill chunks beside decodes and other prefills, in changing company."""
    prompts = [tokens_of(n, seed=n) for n in (3, 90, 41, 17, 64, 130)]
    alone = [ModelDriver(model).prefill(prompt) for prompt in prompts]
    driver = ModelDriver(model)
    sequences = [driver.add(prompt) for prompt in prompts]
    turn = 0
    while any(s.computed < len(s.tokens) for s in sequences):
        turn += 1
        work = []
        for i, sequence in enumerate(sequences):
            left = len(sequence.tokens) - sequence.computed
            if left and (i + turn) % 4:
                work.append((sequence, min(left, 1 + (7 * i + 11 * turn) % 29)))
        if not work:
            continue
        before = [sequence.computed for sequence, _ in work]
        for (sequence, count), start, logits in zip(
            work, before, driver.step(work, all_rows=True), strict=True
        ):
            want = alone[next(i for i, s in enumerate(sequences) if s is sequence)]
            assert same_bits(logits, want[start : start + count])


def test_prefix_hits(model: Model) -> None:
    prefix = tokens_of(96, seed=2)
    driver = ModelDriver(model)
    first = driver.add(prefix)
    driver.step([(first, 96)])
    tokens = prefix + tokens_of(30, seed=3)
    hit = driver.add(tokens, shared_with=first)
    assert hit.computed == 96
    (logits,) = driver.step([(hit, 30)], all_rows=True)
    assert same_bits(logits, ModelDriver(model).prefill(tokens)[96:])


def test_threads(model: Model, tmp_path: Path) -> None:
    tokens = tokens_of(70, seed=4)
    before = kernels.num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            kernels.set_num_threads(threads)
            results.append(ModelDriver(model).prefill(tokens, (23,)))
    finally:
        kernels.set_num_threads(before)
    assert all(same_bits(result, results[0]) for result in results)
