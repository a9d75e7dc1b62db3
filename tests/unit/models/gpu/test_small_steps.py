"""What lies between the products: rotation and routing, against plain PyTorch's."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from inlay.core.kv_format import gqa_format, mla_format
from inlay.core.model_shape import RouterShape
from inlay.models import torch_experts
from inlay.models.gpu.rope import rope_and_store
from inlay.models.gpu.route import route
from inlay.models.ops import AttentionSpec
from inlay.models.torch_ops import TorchOps
from tests.unit.models.gpu.products import rows_of


@pytest.mark.parametrize("norms", ["none", "first", "last"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "pairs", "value_dim"),
    [(6, 2, 32, 16, 0), (3, 1, 24, 4, 0), (4, 1, 40, 4, 32)],
)
def test_rotation_and_pages(heads, kv_heads, width, pairs, value_dim, norms, device):
    tokens, page_tokens, layers = 5, 4, 2
    if value_dim:
        kv_format = mla_format(layers=layers, width=width, dtype="float32", page_tokens=page_tokens)
    else:
        kv_format = gqa_format(
            layers=layers, kv_heads=kv_heads, head_dim=width, dtype="float32",
            page_tokens=page_tokens,
        )  # fmt: skip
    planes = len(kv_format.planes)
    slots_T = torch.tensor([17, 3, 4, 0, 30], device=device)
    angles = rows_of(tokens, pairs, device)
    weights = rows_of(2, width, device, seed=2) if norms != "none" else (None, None)
    spec = AttentionSpec(
        layer=1, heads=heads, kv_heads=kv_heads, head_dim=width, window=0, scale=1.0, eps=1e-6,
        q_norm_D=weights[0], k_norm_D=weights[1], rotate_first=norms == "last", value_dim=value_dim,
    )  # fmt: skip
    rows = rows_of(tokens, (heads + planes * kv_heads) * width + 8, device, seed=3)
    made = []
    for plain in (True, False):
        qkv_TX = rows.clone()[:, : (heads + planes * kv_heads) * width]
        data = torch.zeros((8, layers, planes, page_tokens, kv_heads, width), device=device)
        if plain:
            step = SimpleNamespace(
                pool=SimpleNamespace(format=kv_format, data=data),
                ropes=((angles.cos()[:, None], angles.sin()[:, None]),),
                slots_T=slots_T,
            )
            copied = qkv_TX.contiguous()
            TorchOps(device).rope_and_store(copied, spec, step)
            made.append((copied, data))
            continue
        rope_and_store(
            qkv_TX, angles.cos(), angles.sin(), data, 1, slots_T, heads=heads,
            first=width - 2 * pairs if value_dim else 0,
            q_norm_D=spec.q_norm_D, k_norm_D=spec.k_norm_D, eps=spec.eps,
            rotate_first=spec.rotate_first,
        )  # fmt: skip
        made.append((qkv_TX, data))
    for expected, found in zip(*made, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert made[1][1].any(dim=-1).sum() == tokens * planes * kv_heads


@pytest.mark.parametrize(
    ("router", "experts", "top_k", "corrected"),
    [
        (RouterShape(normalize=True), 128, 8, False),
        (RouterShape(scale=2.5), 5, 1, False),
        (RouterShape(score="sigmoid", normalize=True, scale=2.5), 160, 8, True),
        (
            RouterShape(
                score="sigmoid", groups=8, groups_per_token=4, group_score="best_two",
                normalize=True,
            ),
            64, 6, True,
        ),
        (RouterShape(groups=5, groups_per_token=2), 60, 6, False),
    ],
)  # fmt: skip
def test_routing(router, experts, top_k, corrected, device):
    tokens = 9
    logits_TE = 3 * rows_of(tokens, experts, device)
    correction_E = rows_of(1, experts, device, seed=8)[0] if corrected else None
    made = []
    for choose in (torch_experts.route, route):
        ids_TK = torch.full((tokens, top_k), -1, dtype=torch.int32, device=device)
        weights_TK = torch.full((tokens, top_k), torch.nan, device=device)
        choose(logits_TE, router, correction_E, ids_TK, weights_TK)
        made.append((ids_TK, weights_TK))
    assert torch.equal(made[0][0], made[1][0])
    torch.testing.assert_close(made[1][1], made[0][1], rtol=1e-6, atol=0)


def test_equal_scores_go_to_lower_ids(device):
    ids_TK = torch.empty((1, 3), dtype=torch.int32, device=device)
    weights_TK = torch.empty((1, 3), device=device)
    logits = np.array([[0, 2, 1, 2, 1, 1]], np.float32)
    route(torch.from_numpy(logits).to(device), RouterShape(), None, ids_TK, weights_TK)
    assert ids_TK.tolist() == [[1, 3, 2]]
