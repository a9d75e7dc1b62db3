"""Chosen experts in slots against what their weights say."""

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.pairs import blocks_of
from tests.unit.models.gpu.products import (
    PACKED,
    assert_close,
    choices,
    expected_sum,
    host_experts,
    rows_of,
)

CLAMPED = kernels.Activation(alpha=1.702, limit=1.0, up_offset=1)


def run(device, weight_format, tokens, *, hidden=160, width=72, experts=5, top_k=3, **options):
    host = host_experts(experts, hidden, width, weight_format, biases=options.get("biases", False))
    activation = options.get("activation", kernels.SILU)
    # Slots in another order, and one that nobody chose.
    gpu = GpuExperts(
        experts + 1, hidden, width, weight_format, device, biases=options.get("biases", False)
    )
    slot_of = torch.randperm(experts, generator=torch.Generator().manual_seed(1))
    for expert, slot in enumerate(slot_of.tolist()):
        gpu.set_slot(slot, host, expert)
    ids_TK, routing_TK = choices(tokens, top_k, experts, device)
    slots_TK = torch.where(ids_TK < 0, ids_TK, slot_of.to(device)[ids_TK.long()].int())
    x_TM = rows_of(tokens, hidden, device)
    out_TM = rows_of(tokens, hidden, device, seed=6)
    expected = expected_sum(x_TM, host, ids_TK, routing_TK, out_TM, activation)
    gpu.moe(x_TM, slots_TK, routing_TK, out_TM, activation)
    assert_close(out_TM, expected, hidden)


@pytest.mark.parametrize("weight_format", PACKED)
def test_every_format(weight_format, device):
    run(device, weight_format, 3)


@pytest.mark.parametrize("tokens", [1, 17, 64])
def test_numbers_of_tokens(tokens, device):
    run(device, "int4:g32", tokens)


@pytest.mark.parametrize("weight_format", ["mxfp4", "int8"])
def test_biases_and_a_clamped_activation(weight_format, device):
    run(device, weight_format, 5, biases=True, activation=CLAMPED)


def test_tokens_in_turns(device, monkeypatch):
    monkeypatch.setattr("inlay.models.gpu.experts._SCRATCH_BYTES", 4 * 3 * 160 * 4)
    run(device, "int8", 11)


def test_no_tokens_and_none_here(device):
    gpu = GpuExperts(2, 64, 32, "int8", device)
    before = rows_of(3, 64, device)
    for tokens in (0, 3):
        out = before[:tokens].clone()
        nowhere = torch.full((tokens, 2), -1, dtype=torch.int32, device=device)
        gpu.moe(before[:tokens], nowhere, torch.ones((tokens, 2), device=device), out)
        assert torch.equal(out, before[:tokens])


@pytest.mark.parametrize(("pairs", "slots"), [(1, 1), (7, 3), (300, 5), (520, 600)])
@pytest.mark.parametrize("rows", [16, 32])
def test_blocks_hold_each_pair_once(pairs, slots, rows, device):
    rng = np.random.default_rng(pairs)
    slots_P = rng.integers(-1, slots, pairs).astype(np.int32)
    blocks = blocks_of(torch.from_numpy(slots_P).to(device), slots, rows)
    order, table = blocks.order_P.cpu().numpy(), blocks.table_B3.cpu().numpy()
    table = table[table[:, 0] >= 0]
    assert len(table) == sum(-(-n // rows) for n in np.bincount(slots_P[slots_P >= 0]))
    found = []
    for slot, first, count in table:
        assert 1 <= count <= rows
        members = order[first : first + count]
        assert (slots_P[members] == slot).all()
        found += members.tolist()
    assert found == sorted(np.flatnonzero(slots_P >= 0), key=lambda pair: (slots_P[pair], pair))
