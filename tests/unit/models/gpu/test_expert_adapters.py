"""What adapters add to experts in slots, against experts whose matrices have it merged."""

import numpy as np
import pytest
import torch

from inlay import kernels
from inlay.models.gpu.expert_adapters import AddedPairs, GpuExpertAdapter
from inlay.models.gpu.experts import GpuExperts
from tests.unit.models.gpu.products import (
    assert_close,
    choices,
    expected_sum,
    host_experts,
    rows_of,
)

ALL = ("gate", "up", "down")
CLAMPED = kernels.Activation(alpha=1.702, limit=1.0, up_offset=1)
EXPERTS, HIDDEN, WIDTH = 5, 160, 72


def pairs_of(seed, rank, *, experts=range(EXPERTS), matrices=ALL, hidden=HIDDEN, width=WIDTH):
    """Products of about the size of the weights."""
    rng = np.random.default_rng(seed)
    found = {}
    for matrix in matrices:
        inputs, outputs = (width, hidden) if matrix == "down" else (hidden, width)
        for expert in experts:
            a = rng.standard_normal((rank, inputs), dtype=np.float32) / inputs**0.5
            b = rng.standard_normal((outputs, rank), dtype=np.float32) / rank**0.5
            found[expert, matrix] = (a, b, 0.7)
    return found


# Ranks below, at and above a program's part; an adapter of some experts, and of some matrices.
ADAPTERS = (
    pairs_of(1, 3),
    pairs_of(2, 32, experts=(0, 3), matrices=("up", "down")),
    pairs_of(3, 40, matrices=("gate", "down")),
    pairs_of(4, 5, matrices=("down",)) | pairs_of(5, 2, experts=(1, 4), matrices=("gate",)),
)


def run(device, weight_format, spans, tokens, *, top_k=3, resident=EXPERTS, **options):
    """`spans`: for each adapter the number of its pairs, and its rows, first to end."""
    hidden, biases = options.get("hidden", HIDDEN), options.get("biases", False)
    adapters = options.get("adapters", ADAPTERS)
    host = host_experts(EXPERTS, hidden, WIDTH, weight_format, biases=biases)
    activation = options.get("activation", kernels.SILU)
    # In other slots than their numbers, some of them or all.
    gpu = GpuExperts(EXPERTS + 1, hidden, WIDTH, weight_format, device, biases=biases)
    slot_of = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(1)).int() + 1
    slot_of[resident:] = -1
    for expert, slot in enumerate(slot_of[:resident].tolist()):
        gpu.set_slot(slot, host, expert)
    ids_TK, routing_TK = choices(tokens, top_k, EXPERTS, device)
    slots_TK = torch.where(ids_TK < 0, ids_TK, slot_of.to(device)[ids_TK.clamp(min=0).long()])
    here_TK = torch.where(slots_TK < 0, slots_TK, ids_TK)
    x_TM = rows_of(tokens, hidden, device)
    out_TM = rows_of(tokens, hidden, device, seed=6)
    expected = expected_sum(x_TM, host, here_TK, routing_TK, out_TM, activation)
    plain = out_TM.clone()
    gpu.moe(x_TM, slots_TK, routing_TK, plain, activation)
    which_T = torch.full((tokens,), -1, dtype=torch.int32)
    for place, (number, first, end) in enumerate(spans):
        rows = slice(first, end)
        which_T[rows] = place
        expected[rows] = expected_sum(
            x_TM[rows], host, here_TK[rows], routing_TK[rows], out_TM[rows], activation,
            adapters[number],
        )  # fmt: skip
    packed = [
        GpuExpertAdapter(EXPERTS, hidden, WIDTH, adapters[number], device) for number, *_ in spans
    ]
    added = AddedPairs(packed, which_T.to(device), ids_TK)
    gpu.moe(x_TM, slots_TK, routing_TK, out_TM, activation, added)
    assert_close(out_TM, expected, hidden)
    without = which_T.to(device) < 0
    assert torch.equal(out_TM[without], plain[without]), "rows without an adapter keep their bits"


@pytest.mark.parametrize("weight_format", ["bfloat16", "int8", "int4:g32", "mxfp4"])
def test_several_adapters_beside_rows_without(weight_format, device):
    run(device, weight_format, [(0, 1, 4), (1, 4, 5), (2, 5, 9), (3, 9, 11)], 12)


@pytest.mark.parametrize("tokens", [1, 2, 33, 70])
def test_numbers_of_tokens(tokens, device):
    run(device, "int8", [(2, 0, tokens)], tokens)


def test_experts_that_are_not_here(device):
    run(device, "int8", [(0, 0, 5), (1, 7, 20)], 20, resident=2)


@pytest.mark.parametrize("weight_format", ["mxfp4", "int8"])
def test_biases_and_a_clamped_activation(weight_format, device):
    run(device, weight_format, [(0, 0, 3), (2, 4, 7)], 8, biases=True, activation=CLAMPED)


def test_tokens_in_turns(device, monkeypatch):
    numbers = 4 * 3 * (HIDDEN + 2 * WIDTH)
    monkeypatch.setattr("inlay.models.gpu.experts._SCRATCH_BYTES", 4 * numbers)
    run(device, "int8", [(0, 1, 6), (3, 6, 10)], 11)


def test_sums_in_pieces(device, monkeypatch):
    """As a GPU with many processors makes them of few pairs."""
    monkeypatch.setattr("inlay.models.gpu.expert_adapters.pieces_of", lambda *_: 3)
    adapters = (pairs_of(1, 40, hidden=640),)
    run(device, "int8", [(0, 0, 2)], 3, hidden=640, adapters=adapters)


def test_many_adapters(device):
    """More of them than experts, each of one row."""
    adapters = tuple(pairs_of(seed, 1 + seed % 5) for seed in range(17))
    run(device, "int8", [(n, n, n + 1) for n in range(17)], 18, adapters=adapters)


def test_memory(device):
    adapter = GpuExpertAdapter(EXPERTS, HIDDEN, WIDTH, ADAPTERS[1], device)
    each = 2 if device.type == "cuda" else 4
    matrices = 2 * 2 * 32 * (HIDDEN + WIDTH)  # of two experts
    assert adapter.nbytes == each * matrices + 4 * (2 * 2 + 3 * EXPERTS)
    assert adapter.of(1, "up", rows_of(1, HIDDEN, device)) is None
