"""What the tests of products share."""

import numpy as np
import torch

from inlay import kernels
from inlay.core.weight_format import FORMATS
from inlay.models.gpu.panels import Panels

PACKED = [name for name in FORMATS if name not in ("float32", "float16")]


def rows_of(rows, columns, device, seed=1):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.standard_normal((rows, columns), dtype=np.float32)).to(device)


def assert_close(found, expected, columns):
    """In float32 up to the order of sums, and the last bits of a large one; on a GPU operands have
    8 bits, errors that add up like a random walk.
    """
    step = 2.0**-8 if found.is_cuda else 2.0**-20
    torch.testing.assert_close(found, expected, rtol=2.0**-20, atol=4 * step * columns**0.5)


def packed(rows, columns, weight_format, device, seed=0):
    """A matrix as panels, and in float32 what it stands for."""
    rng = np.random.default_rng(seed)
    weight = kernels.LinearWeight(rows, columns, weight_format)
    weight.set_rows(0, rng.standard_normal((rows, columns), dtype=np.float32))
    panels = Panels.empty(1, rows, columns, weight_format, device)
    panels.set(0, weight.panels())
    return panels, torch.from_numpy(weight.dequantize()).to(device)


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


def expected_sum(x_TM, experts, ids_TK, routing_TK, out_TM, activation, pairs=None):
    """Expert by expert, in float32. `pairs`: an adapter's, merged into the matrices."""
    out_TM = out_TM.clone()
    width = experts.intermediate
    for expert in range(experts.num_experts):
        tokens, choice = (ids_TK == expert).nonzero(as_tuple=True)
        matrices = [torch.from_numpy(of).to(x_TM) for of in experts.dequantize(expert)]
        for place, matrix in enumerate(("gate", "up", "down")):
            if pairs and (expert, matrix) in pairs:
                a, b, scale = pairs[expert, matrix]
                matrices[place] += torch.from_numpy(scale * (b @ a)).to(x_TM)
        gate, up, down = matrices
        biases = [0.0, 0.0, 0.0]
        if experts.biases() is not None:
            bias = torch.tensor(experts.biases()[expert]).to(x_TM)
            biases = [bias[:width], bias[width : 2 * width], bias[2 * width :]]
        g = (x_TM[tokens] @ gate.T + biases[0]).clamp(max=activation.limit)
        u = (x_TM[tokens] @ up.T + biases[1]).clamp(-activation.limit, activation.limit)
        active = g * torch.sigmoid(activation.alpha * g) * (u + activation.up_offset)
        weights = routing_TK[tokens, choice][:, None]
        out_TM.index_add_(0, tokens, weights * (active @ down.T + biases[2]))
    return out_TM


def choices(tokens, top_k, experts, device, seed=5):
    """Different experts of each token, a third of them not here."""
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(experts)[:top_k] for _ in range(tokens)]).astype(np.int32)
    ids[rng.random(ids.shape) < 0.3] = -1
    routing = rng.random(ids.shape, dtype=np.float32)
    routing[ids < 0] = np.nan  # nobody looks at it
    return torch.from_numpy(ids).to(device), torch.from_numpy(routing).to(device)
