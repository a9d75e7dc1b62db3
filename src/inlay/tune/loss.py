"""Cross entropy of the wanted tokens, a chunk of tokens at a time.

Logits of all tokens never exist: each chunk's become gradients of its hidden states at once, which
is possible because the head does not change. Shapes: R rows, M width, V vocabulary.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from inlay.tune.products import linear, matmul

CHUNK_BYTES = 64 << 20  # of float32 logits, at most
# Fewer bytes stay in the caches, fewer rows would not make up for reading the head again.
_CACHED_BYTES = 8 << 20
_ENOUGH_ROWS = 128


class _SummedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states_RM: Tensor, head_VM: Tensor, labels_R: Tensor) -> Tensor:
        gradient_RM = torch.empty_like(states_RM)
        loss = states_RM.new_zeros((), dtype=torch.float64)
        for part, logits_RV in _chunks(states_RM, head_VM):
            log_p_RV = logits_RV.log_softmax(-1)
            labels_R1 = labels_R[part, None]
            loss -= log_p_RV.gather(1, labels_R1).sum()
            error_RV = log_p_RV.exp_()
            error_RV.scatter_add_(1, labels_R1, -torch.ones_like(labels_R1, dtype=torch.float32))
            gradient_RM[part] = matmul(error_RV.to(head_VM.dtype), head_VM)
            del logits_RV, log_p_RV, error_RV  # before the next ones are made
        ctx.save_for_backward(gradient_RM)
        return loss.to(torch.float32)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (gradient_RM,) = ctx.saved_tensors
        return gradient * gradient_RM, None, None


def summed_loss(states_RM: Tensor, head_VM: Tensor, labels_R: Tensor) -> Tensor:
    """Sum over rows of -log p(label), float32.

    Args:
        states_RM: float32, after the last norm.
        head_VM: float32 or bfloat16, the dtype of products; gets no gradient.
        labels_R: int64.

    Cost: three products of the logits' size, and `CHUNK_BYTES` a few times.
    Source: computing gradients in the forward pass as in Cut Cross-Entropy (arXiv 2411.09009) and
        Liger Kernel (arXiv 2410.10989).
    """
    loss: Tensor = _SummedLoss.apply(states_RM, head_VM, labels_R)  # type: ignore[no-untyped-call]
    return loss


@torch.no_grad()
def summed_loss_and_hits(states_RM: Tensor, head_VM: Tensor, labels_R: Tensor) -> tuple[float, int]:
    """The same sum, and how many labels are the likeliest token; without gradients.

    Args:
        states_RM, head_VM, labels_R: as `summed_loss` takes them.

    Cost: one product of the logits' size, and `CHUNK_BYTES` a few times.
    """
    loss = states_RM.new_zeros((), dtype=torch.float64)
    hits = labels_R.new_zeros(())
    for part, logits_RV in _chunks(states_RM, head_VM):
        loss += F.cross_entropy(logits_RV, labels_R[part], reduction="sum")
        hits += (logits_RV.argmax(-1) == labels_R[part]).sum()
        del logits_RV
    return float(loss), int(hits)


def chunk_rows(vocab: int) -> int:
    """How many rows of logits there are at a time."""
    row_bytes = 4 * vocab
    return max(_CACHED_BYTES // row_bytes, min(_ENOUGH_ROWS, CHUNK_BYTES // row_bytes), 1)


def _chunks(states_RM: Tensor, head_VM: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows and their logits, float32, as many at a time as `CHUNK_BYTES` hold."""
    step = chunk_rows(len(head_VM))
    for start in range(0, len(states_RM), step):
        part = slice(start, start + step)
        yield part, linear(states_RM[part].to(head_VM.dtype), head_VM).float()
