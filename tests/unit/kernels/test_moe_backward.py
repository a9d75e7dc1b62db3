"""The reference of training routed experts, against autograd in float64."""

from typing import Any

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.kernels import reference
from inlay.kernels.reference.dropout import kept_scales

E, M, F, K, R, T = 5, 24, 20, 3, 4, 17
GPT_OSS = (1.702, 7.0, 1.0)
SILU = (1.0, float("inf"), 0.0)


def case(bias: bool, dtype: Any = np.float64) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    experts = reference.ExpertWeights(E, M, F, "float32", bias)
    for expert in range(E):
        matrices = [rng.standard_normal(shape) for shape in ((F, M), (F, M), (M, F))]
        biases = [rng.standard_normal(size) for size in (F, F, M)] if bias else []
        experts.set(expert, *(a.astype(np.float32) for a in (*matrices, *biases)))
    shapes = ((R, M), (F, R), (R, M), (F, R), (R, F), (M, R))
    ids = np.argsort(rng.random((T, E)), axis=1)[:, :K].astype(np.int32)
    ids[::4, 1] = -1
    return {
        "experts": experts,
        "ids": ids,
        "x": 2 * rng.standard_normal((T, M)).astype(dtype),
        "routing": rng.random((T, K)).astype(dtype),
        "lora": tuple(rng.standard_normal((E, *shape)).astype(dtype) for shape in shapes),
        "grad_out": rng.standard_normal((T, M)).astype(dtype),
    }


def autograd(c: dict[str, Any], activation: tuple[float, ...], dropout: float) -> list[np.ndarray]:
    """Output, and gradients of x, routing and LoRA, straight from the definition."""
    alpha, limit, offset = activation
    leaves = [torch.tensor(v, requires_grad=True) for v in (c["x"], c["routing"], *c["lora"])]
    x, routing, *lora = leaves
    biases = c["experts"].biases()
    rows = []
    for t in range(T):
        row = torch.zeros(M, dtype=torch.float64)
        for k, e in enumerate(map(int, c["ids"][t])):
            if e < 0:
                continue
            gate_w, up_w, down_w = (torch.tensor(w).double() for w in c["experts"].dequantize(e))
            b = torch.zeros(2 * F + M) if biases is None else torch.tensor(biases[e])
            place = np.array([t])
            x_mask = torch.tensor(kept_scales(3, 0, place, M, dropout)[0])
            h_mask = torch.tensor(kept_scales(3, 1 + e, place, F, dropout)[0])
            v = x[t]
            gate = gate_w @ v + 0.5 * lora[1][e] @ (lora[0][e] @ (x_mask * v)) + b[:F]
            up = up_w @ v + 0.5 * lora[3][e] @ (lora[2][e] @ (x_mask * v)) + b[F : 2 * F]
            g, u = gate.clamp(max=limit), up.clamp(-limit, limit)
            h = g * torch.sigmoid(alpha * g) * (u + offset)
            down = down_w @ h + 0.5 * lora[5][e] @ (lora[4][e] @ (h_mask * h)) + b[2 * F :]
            row = row + routing[t, k] * down
        rows.append(row)
    out = torch.stack(rows)
    out.backward(torch.tensor(c["grad_out"]))
    return [out.detach().numpy(), *(leaf.grad.numpy() for leaf in leaves if leaf.grad is not None)]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("activation", [SILU, GPT_OSS])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_equal_autograd(
    recompute: bool, activation: tuple[float, float, float], dropout: float
) -> None:
    c = case(bias=activation is GPT_OSS)
    out = np.empty_like(c["x"])
    saved = reference.moe_saving(
        c["x"], c["experts"], c["ids"], c["routing"], out, c["lora"], 0.5, dropout, 3,
        *activation, recompute,
    )  # fmt: skip
    grads = [np.empty_like(v) for v in (c["x"], c["routing"], *c["lora"])]
    reference.moe_backward(saved, c["grad_out"], grads[0], grads[1], tuple(grads[2:]))
    for ours, theirs in zip([out, *grads], autograd(c, activation, dropout), strict=True):
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)
    assert not grads[1][c["ids"] < 0].any()


def test_a_draw_depends_on_its_place_alone() -> None:
    tokens = np.arange(400)
    all_of_them = kept_scales(11, 0, tokens, 300, 0.1)
    assert np.array_equal(kept_scales(11, 0, tokens[[5, 2]], 300, 0.1), all_of_them[[5, 2]])
    assert set(np.unique(all_of_them)) == {0, np.float32(1 / 0.9)}
    dropped = all_of_them == 0
    assert abs(dropped.mean() - 0.1) < 0.005
    for others in (kept_scales(12, 0, tokens, 300, 0.1), kept_scales(11, 1, tokens, 300, 0.1)):
        assert abs((dropped & (others == 0)).mean() - 0.01) < 0.002
    both = dropped[:-1] & dropped[1:], dropped[:, :-1] & dropped[:, 1:]
    assert all(abs(pair.mean() - 0.01) < 0.002 for pair in both)


def test_what_was_saved_is_used_once() -> None:
    c = case(bias=False, dtype=np.float32)
    experts = kernels.ExpertWeights(E, M, F, "float32")
    lora = kernels.ExpertLora(
        **dict(zip(kernels.ExpertLora.__dataclass_fields__, (*c["lora"], 0.5), strict=True))
    )
    saved = kernels.moe_saving(
        c["x"], experts, c["ids"], c["routing"], np.empty_like(c["x"]), lora=lora
    )
    assert saved.nbytes > c["x"].nbytes / 2
    gradients = kernels.moe_backward(saved, c["grad_out"])
    assert gradients.lora is not None and gradients.lora[5].shape == (E, M, R)
    with pytest.raises(ArgumentError, match="^saved: "):
        kernels.moe_backward(saved, c["grad_out"])
