"""The loss of chunks of logits, against all logits at once."""

import pytest
import torch
import torch.nn.functional as F

from inlay.tune import loss as losses


@pytest.mark.parametrize("rows_per_chunk", [1, 3, 50])
def test_chunks_change_neither_loss_nor_hits(
    rows_per_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(0)
    states_RM = torch.randn(10, 8, generator=generator, requires_grad=True)
    head_VM = torch.randn(32, 8, generator=generator)
    logits_RV = (states_RM.detach().double() @ head_VM.double().T).requires_grad_()
    labels_R = logits_RV.argmax(-1)
    labels_R[::2] = (labels_R[::2] + 1) % 32  # half are wrong
    expected = F.cross_entropy(logits_RV, labels_R, reduction="sum")
    expected.backward()
    assert logits_RV.grad is not None
    monkeypatch.setattr(losses, "CHUNK_BYTES", 4 * 32 * rows_per_chunk)

    loss, hits = losses.summed_loss_and_hits(states_RM, head_VM, labels_R)
    assert (loss, hits) == (pytest.approx(expected.item(), rel=1e-6), 5)

    trained = losses.summed_loss(states_RM, head_VM, labels_R)
    assert trained.item() == pytest.approx(expected.item(), rel=1e-6)
    trained.backward()
    torch.testing.assert_close(
        states_RM.grad, (logits_RV.grad @ head_VM.double()).float(), rtol=1e-5, atol=1e-5
    )
