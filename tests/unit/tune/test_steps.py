"""Rows and learning rates of steps, and what an optimizer does of them."""

from pathlib import Path

import pytest
import torch

from inlay.core.errors import ConfigError
from inlay.tune.optimizer import AdamW
from inlay.tune.steps import StepPlan
from tests.support.tuning import settings


def plan(rows: int, **options: object) -> StepPlan:
    return StepPlan.of(settings(Path("m"), Path("o"), **options), rows)


def test_an_epoch_takes_each_row_once() -> None:
    of_run = plan(11, gradient_accumulation_steps=2, num_train_epochs=2.0)
    assert (of_run.steps_per_epoch, of_run.total) == (3, 6)
    for epoch in range(2):
        steps = range(3 * epoch, 3 * epoch + 3)
        rows = [row for step in steps for batch in of_run.batches(step) for row in batch]
        assert sorted(rows) == list(range(11))
    assert [len(of_run.batches(step)) for step in range(3)] == [2, 2, 2]
    assert of_run.batches(0) != of_run.batches(3)
    assert of_run.batches(4) == plan(
        11, gradient_accumulation_steps=2, num_train_epochs=2.0
    ).batches(4)


def test_rows_keep_their_order_where_they_are_not_shuffled() -> None:
    assert plan(5, disable_shuffling=True).batches(1) == [[2, 3]]


def test_max_steps_goes_before_epochs() -> None:
    assert plan(4, max_steps=7).total == 7
    assert plan(4, num_train_epochs=0.5).total == 1


def test_no_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="no sample is left"):
        plan(0)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "constant_with_warmup"])
def test_schedules_are_those_of_transformers(kind: str) -> None:
    from transformers import get_scheduler

    of_run = plan(20, max_steps=20, lr_scheduler_type=kind, warmup_ratio=0.2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=of_run.learning_rate)
    scheduler = get_scheduler(kind, optimizer, num_warmup_steps=4, num_training_steps=20)
    for step in range(20):
        assert of_run.rate(step) == pytest.approx(scheduler.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        scheduler.step()


def test_warmup_may_be_a_number_or_a_share() -> None:
    assert plan(20, max_steps=20, warmup_steps=3).warmup == 3
    assert plan(20, max_steps=20, warmup_steps=0.1).warmup == 2


def test_updates_are_those_of_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(5, 3, generator=generator).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    mine = AdamW([("x", ours)], beta1=0.9, beta2=0.99, epsilon=1e-8, weight_decay=0.1)
    other = torch.optim.AdamW([theirs], lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1)
    for _ in range(10):
        gradient = torch.randn(5, 3, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        assert mine.norm() == pytest.approx(float(gradient.norm()), rel=1e-6)
        mine.step(0.01, 1.0)
        other.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


def test_moments_have_the_dtype_of_their_matrix() -> None:
    matrix = torch.ones(4, 4, dtype=torch.bfloat16).requires_grad_()
    mine = AdamW([("x", matrix)], beta1=0.9, beta2=0.999, epsilon=1e-8, weight_decay=0.0)
    matrix.grad = torch.full((4, 4), 2.0, dtype=torch.bfloat16)
    mine.step(0.1, 1.0)
    assert {state.dtype for _, state in mine.states()} == {torch.bfloat16}
    assert mine.nbytes == 2 * 16 * 2
    torch.testing.assert_close(matrix.detach().float(), torch.full((4, 4), 0.9), rtol=0, atol=4e-3)
