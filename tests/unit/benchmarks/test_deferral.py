"""The control of experts/deferral_accuracy, and the idle device of experts/deferral."""

import numpy as np
import torch

from benchmarks.experts.deferral import IdleOps
from benchmarks.experts.deferral_accuracy import drop
from inlay.core.model_shape import RouterShape


def test_the_lightest_experts_of_tokens_that_decode_are_dropped():
    weights_TK = torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.1, 0.4, 0.2, 0.3]])
    drop(weights_TK, torch.tensor([False, True]), 2)
    assert torch.equal(weights_TK, torch.tensor([[0.1, 0.4, 0.2, 0.3], [0.0, 0.4, 0.0, 0.3]]))


def test_an_idle_device_draws_experts_and_computes_nothing():
    ops = IdleOps("fake:0", 0)
    x_TM, out_TM = torch.ones(3, 8), torch.zeros(3, 8)
    ids_TK, weights_TK = torch.zeros(3, 4, dtype=torch.int32), torch.zeros(3, 4)
    ops.rms_norm(x_TM, torch.ones(8), 1e-6, out_TM)
    ops.route(torch.zeros(3, 16), RouterShape(), None, ids_TK, weights_TK)
    ops.settle()
    assert not out_TM.any()
    assert all(len(set(row)) == 4 and max(row) < 16 for row in ids_TK.tolist())
    assert np.allclose(weights_TK.sum(1), 1)
