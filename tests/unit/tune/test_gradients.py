"""Gradients of every LoRA matrix beside float64 autograd of plain formulas."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from inlay.tune.model import TrainModel
from tests.support.peft_models import TARGETS, same_in_peft
from tests.support.plain_decoder import PlainDecoder
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import VOCAB, new_model

CASES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {},
    "qwen3": {},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mixtral": {},
    "deepseek_v2": {},
    "deepseek_v3": {},
}
STARTS = [0, 13, 22]


def batch() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two segments in one row: ids, positions, labels."""
    ids = torch.randint(0, VOCAB, (STARTS[-1],), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(b - a) for a, b in zip(STARTS, STARTS[1:], strict=False)])
    labels = ids.roll(-1)
    labels[[0, 1, *(end - 1 for end in STARTS[1:])]] = -100
    return ids, positions, labels


def gradients(model: TrainModel) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and a gradient for each matrix of each module."""
    ids, positions, labels = batch()
    loss = model.loss(ids, positions, STARTS, labels)
    loss.backward()
    found = {}
    for target, pair in model.lora.pairs.items():
        for side, matrix in (("A", pair.a), ("B", pair.b)):
            assert matrix.grad is not None, (target.name, side)
            parts = matrix.grad if target.experts else [matrix.grad]
            for number, part in enumerate(parts):
                found[f"{target.name_of(number)}.{side}"] = part
    return loss.item(), found


def plain_gradients(directory: Path, model: TrainModel) -> tuple[float, dict[str, torch.Tensor]]:
    """The same in float64."""
    leaves = {}
    for target, pair in model.lora.pairs.items():
        for number in range(target.experts or 1):
            one = (pair.a[number], pair.b[number]) if target.experts else (pair.a, pair.b)
            leaves[target.name_of(number)] = tuple(
                matrix.detach().double().requires_grad_() for matrix in one
            )
    plain = PlainDecoder(directory, leaves, model.lora.scale)
    ids, _, labels = batch()
    loss = sum(
        plain.summed_loss(ids[a:b], labels[a:b]) for a, b in zip(STARTS, STARTS[1:], strict=False)
    )
    loss.backward()
    found = {}
    for module, pair in leaves.items():
        for side, matrix in zip("AB", pair, strict=True):
            found[f"{module}.{side}"] = matrix.grad
    return loss.item(), found


@pytest.mark.parametrize("architecture", CASES)
def test_gradients_are_those_of_plain_formulas(architecture: str, tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", architecture, **CASES[architecture])
    model = new_model(directory, random_b=True)
    loss, found = gradients(model)
    plain_loss, expected = plain_gradients(directory, model)
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        if expected[name] is None:  # of an expert that no token chose
            assert not gradient.any(), name
            continue
        error = (gradient.double() - expected[name]).norm() / expected[name].norm().clamp(min=1e-12)
        assert error < 1e-4, (name, float(error))


@pytest.mark.parametrize(
    "options", [{"recompute": False}, {"recompute": False, "retain": True}, {"retain": True}]
)
def test_what_is_kept_changes_no_gradient(options: dict[str, bool], tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    loss, expected = gradients(new_model(directory, random_b=True))
    other_loss, found = gradients(new_model(directory, random_b=True, **options))
    assert other_loss == loss
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)


# One expert, so that rounding chooses no other one.
ONE = {"num_experts": 1, "num_experts_per_tok": 1, "dtype": "bfloat16", "initializer_range": 0.05}


def test_routed_experts_in_bfloat16_are_within_a_hundredth(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe", **ONE)
    model = new_model(directory, random_b=True, expert_format="bfloat16")
    loss, found = gradients(model)
    plain_loss, expected = plain_gradients(directory, model)
    assert loss == pytest.approx(plain_loss, rel=1e-3)
    for name, gradient in found.items():
        error = (gradient.double() - expected[name]).norm() / expected[name].norm()
        assert error < 1e-2, (name, float(error))


def peft_gradients(directory: Path, model: TrainModel) -> dict[str, torch.Tensor]:
    """The same of transformers and PEFT in bfloat16, one segment after the other."""
    peft, named = same_in_peft(directory, model, torch.bfloat16)
    ids, _, labels = batch()
    for a, b in zip(STARTS, STARTS[1:], strict=False):
        logits_TV = peft(input_ids=ids[None, a:b]).logits[0].float()
        F.cross_entropy(logits_TV, labels[a:b], reduction="sum").backward()
    return {f"{t.name_of(0)}.{side}": matrix.grad for (t, side), matrix in named.items()}


def off(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Relative error in L2 over all matrices."""
    flat, exact = (torch.cat([g[n].flatten().double() for n in found]) for g in (found, expected))
    return float((flat - exact).norm() / exact.norm())


def test_bfloat16_is_near(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe", **ONE)
    model = new_model(directory, random_b=True, dtype=torch.bfloat16)
    loss, found = gradients(model)
    plain_loss, expected = plain_gradients(directory, model)
    assert loss == pytest.approx(plain_loss, rel=2e-3)
    # Some twenty products one behind the other, which take and give 8 bits: 3 % here, nearly all
    # of it from attention, whose products are PyTorch's.
    assert off(found, expected) < 5e-2


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
def test_bfloat16_is_as_near_as_in_peft(tmp_path: Path) -> None:
    ours, theirs = [], []
    for seed in range(6):
        directory = make_tiny_model(tmp_path / str(seed), "qwen3_moe", seed=seed, **ONE)
        model = new_model(directory, targets=TARGETS, random_b=True, dtype=torch.bfloat16)
        _, found = gradients(model)
        _, expected = plain_gradients(directory, model)
        ours.append(off(found, expected))
        theirs.append(off(peft_gradients(directory, model), expected))
    # 2.4 to 4.2 % here, 2.7 to 5.0 % there, which of them is nearer differs from model to model.
    assert sum(ours) < 1.3 * sum(theirs)


def test_a_target_that_is_not_chosen_has_no_matrices(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    model = new_model(directory, targets=("q_proj", "experts.down_proj"), random_b=True)
    loss, found = gradients(model)
    plain_loss, expected = plain_gradients(directory, model)
    assert {name.split(".")[-2] for name in found} == {"q_proj", "down_proj"}
    assert loss == pytest.approx(plain_loss, rel=1e-5)
    for name, gradient in found.items():
        if expected[name] is not None:
            torch.testing.assert_close(gradient.double(), expected[name], rtol=1e-3, atol=1e-5)
