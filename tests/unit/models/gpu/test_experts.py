"""Chosen experts in slots against what their weights say."""

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.pairs import blocks_of
from tests.unit.models.gpu.products import PACKED, assert_close, rows_of

CLAMPED = kernels.Activation(alpha=1.702, limit=1.0, up_offset=1)


def host_experts(count, hidden, width, weight_format, *, biases=False):
    rng = np.random.default_rng(4)
    experts = kernels.ExpertWeights(count, hidden, width, weight_format, biases)
    for expert in range(count):
        gate, up = rng.standard_normal((2, width, hidden), dtype=np.float32) / hidden**0.5
        down = rng.standard_normal((hidden, width), dtype=np.float32) / width**0.5
        sizes = (width, width, hidden) if biases else ()
        given = [rng.standard_normal(size, dtype=np.float32) for size in sizes]
        experts.set(expert, gate, up, down, *given)
    return experts


def expected_sum(x_TM, experts, ids_TK, routing_TK, out_TM, activation):
    """Token by token, in float32."""
    out_TM = out_TM.clone()
    width = experts.intermediate
    for t, ids in enumerate(ids_TK.tolist()):
        for k, expert in enumerate(ids):
            if expert < 0:
                continue
            gate, up, down = (torch.from_numpy(of).to(x_TM) for of in experts.dequantize(expert))
            biases = [0.0, 0.0, 0.0]
            if experts.biases() is not None:
                bias = torch.tensor(experts.biases()[expert]).to(x_TM)
                biases = [bias[:width], bias[width : 2 * width], bias[2 * width :]]
            g = (gate @ x_TM[t] + biases[0]).clamp(max=activation.limit)
            u = (up @ x_TM[t] + biases[1]).clamp(-activation.limit, activation.limit)
            active = g * torch.sigmoid(activation.alpha * g) * (u + activation.up_offset)
            out_TM[t] += routing_TK[t, k] * (down @ active + biases[2])
    return out_TM


def choices(tokens, top_k, experts, device, seed=5):
    """Different experts of each token, a third of them not here."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]).astype(np.int32)
    ids[rng.random(ids.shape) < 0.3] = -1
    routing = rng.random(ids.shape, dtype=np.float32)
    routing[ids < 0] = np.nan  # nobody looks at it
    return torch.from_numpy(ids).to(device), torch.from_numpy(routing).to(device)


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
