import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import ROLLED_COLUMNS, RandomModel
from benchmarks.models.random_tensors import RandomTensors
from benchmarks.models.write_gguf import write_gguf
from inlay.models.float_arrays import BFLOAT16, to_float32
from inlay.models.model import load_model
from inlay.models.weight_names import expected_tensors
from tests.support.model_driver import ModelDriver

SMALL = {"num_hidden_layers": 2, "hidden_size": 256, "vocab_size": 64, "moe_intermediate_size": 128}
KNOWN = {
    "qwen3-30b-a3b": SMALL
    | {"num_experts": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128},
    "deepseek-v2-lite": SMALL
    | {"n_routed_experts": 8, "num_attention_heads": 2, "intermediate_size": 256},
}


@pytest.fixture(params=KNOWN)
def model(request: pytest.FixtureRequest) -> RandomModel:
    top_k = {"num_experts_per_tok": 2}
    return RandomModel(request.param, 5, **KNOWN[request.param] | top_k)


def test_a_seed_gives_the_same_matrices_in_the_declared_order(model: RandomModel) -> None:
    first, again = list(model.stacks()), list(model.stacks())
    assert [(s.part, s.layer, s.base_RK.shape, s.copies) for s in first] == list(model.matrices())
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.base_RK, other.base_RK)
    for one, other in itertools.pairwise(first):
        assert one.base_RK.shape != other.base_RK.shape or (one.base_RK != other.base_RK).any()


def test_copies_of_scales_belong_to_copies_of_weights(model: RandomModel) -> None:
    """Rolling what quantisation made gives what quantising the rolled matrix would make."""
    for stack in model.stacks():
        if stack.copies == 1:
            continue
        for group in (32, ROLLED_COLUMNS, stack.base_RK.shape[1]):
            for index in range(stack.copies):
                np.testing.assert_array_equal(
                    stack.copy(index, group_maxima(stack.base_RK, group)),
                    group_maxima(stack.copy(index), group),
                )


def test_columns_that_128_does_not_divide_are_rolled_in_whole_groups() -> None:
    changed = {"num_hidden_layers": 1, "hidden_size": 576, "vocab_size": 64}
    table = RandomModel("llama-3.1-8b", 5, **changed).stack(0)
    assert table.part == "embedding" and table.base_RK.shape[1] % ROLLED_COLUMNS
    for index in range(table.copies):
        np.testing.assert_array_equal(
            table.copy(index, group_maxima(table.base_RK, 32)),
            group_maxima(table.copy(index), 32),
        )


def test_copies_differ(model: RandomModel) -> None:
    for stack in model.stacks():
        if stack.part.startswith("expert_"):
            assert (stack.copy(0) != stack.copy(1)).any()
            np.testing.assert_array_equal(stack.copy(1)[1], stack.base_RK[0])


def group_maxima(array_RK: np.ndarray, group: int) -> np.ndarray:
    return np.abs(array_RK).reshape(len(array_RK), -1, group).max(2)


def test_tensors_are_those_of_a_checkpoint(model: RandomModel) -> None:
    tensors = RandomTensors(model)
    for expected in expected_tensors(model.shape, fused_experts=False):
        tensor = tensors.get(expected.name)
        assert (tuple(tensor.shape), tensor.dtype) == (expected.shape, BFLOAT16)
    with pytest.raises(KeyError):
        tensors.get("model.layers.2.self_attn.q_proj.weight")


def test_tensors_are_the_copies_of_stacks(model: RandomModel) -> None:
    tensors = RandomTensors(model)
    by_part = {(stack.part, stack.layer): stack for stack in model.stacks()}
    up = tensors.get("model.layers.1.mlp.experts.3.up_proj.weight")
    np.testing.assert_array_equal(to_float32(up), by_part["expert_up", 1].copy(3))
    head = tensors.get("lm_head.weight")
    np.testing.assert_array_equal(to_float32(head[4:8]), by_part["head", None].copy(1))


def test_a_gguf_file_holds_the_same_model(tmp_path: Path, model: RandomModel) -> None:
    write_gguf(tmp_path / "model.gguf", model, experts="Q4_0", rest="Q8_0")
    loaded = load_model(gguf_folder(tmp_path / "model", tmp_path / "model.gguf"))
    assert loaded.weight_format == "q4_0"
    assert loaded.shape.parameters == model.shape.parameters
    assert torch.isfinite(ModelDriver(loaded).prefill([1, 2, 3, 40, 5], (3,))).all()
