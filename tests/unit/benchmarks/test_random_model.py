import itertools

import numpy as np
import pytest
import torch

from benchmarks.kernels.random_model import ROLLED_COLUMNS, Size, matrices, stacks
from benchmarks.kernels.random_tensors import RandomTensors, config
from inlay.core.model_config import shape_of
from inlay.models.weight_names import expected_tensors

SMALL = Size(
    layers=2, hidden=256, heads=2, kv_heads=1, experts=4, intermediate=128, vocab=64, top_k=2
)


def test_a_seed_gives_the_same_matrices_in_the_declared_order() -> None:
    declared = [(part, layer, shape, copies) for part, layer, shape, copies in matrices(SMALL)]
    first, again = list(stacks(SMALL, 3)), list(stacks(SMALL, 3))
    assert [(s.part, s.layer, s.base_RK.shape, s.copies) for s in first] == declared
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.base_RK, other.base_RK)
    for one, other in itertools.pairwise(stacks(SMALL, 3)):
        assert one.base_RK.shape != other.base_RK.shape or (one.base_RK != other.base_RK).any()


def test_copies_of_scales_belong_to_copies_of_weights() -> None:
    """Rolling what quantisation made gives what quantising the rolled matrix would make."""
    for stack in stacks(SMALL, 0):
        for group in (32, ROLLED_COLUMNS, stack.base_RK.shape[1]):
            for index in range(stack.copies):
                np.testing.assert_array_equal(
                    stack.copy(index, group_maxima(stack.base_RK, group)),
                    group_maxima(stack.copy(index), group),
                )


def test_copies_differ() -> None:
    for stack in stacks(SMALL, 0):
        if stack.part.startswith("expert_"):
            assert (stack.copy(0) != stack.copy(1)).any()
            np.testing.assert_array_equal(stack.copy(1)[1], stack.base_RK[0])


def group_maxima(array_RK: np.ndarray, group: int) -> np.ndarray:
    return np.abs(array_RK).reshape(len(array_RK), -1, group).max(2)


def test_tensors_are_those_of_a_checkpoint() -> None:
    shape = shape_of(config(SMALL))
    tensors = RandomTensors(SMALL, 0)
    for expected in expected_tensors(shape, fused_experts=False):
        tensor = tensors.get(expected.name)
        assert (tuple(tensor.shape), tensor.dtype) == (expected.shape, torch.bfloat16)
    with pytest.raises(KeyError):
        tensors.get("model.layers.2.self_attn.q_proj.weight")


def test_tensors_are_the_copies_of_stacks() -> None:
    tensors = RandomTensors(SMALL, 5)
    by_part = {(stack.part, stack.layer): stack for stack in stacks(SMALL, 5)}
    up = tensors.get("model.layers.1.mlp.experts.3.up_proj.weight")
    np.testing.assert_array_equal(up.float().numpy(), by_part["expert_up", 1].copy(3))
    head = tensors.get("lm_head.weight")
    np.testing.assert_array_equal(head[4:8].float().numpy(), by_part["head", None].copy(1))
