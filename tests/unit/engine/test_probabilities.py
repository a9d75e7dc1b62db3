import numpy as np
import pytest

from inlay.engine.draws import draw
from inlay.engine.probabilities import (
    block_ends,
    draw_place,
    draw_tokens,
    log_sum_exp,
    padded_width,
    place_of_sum,
    running_ends,
    top_ids,
    weights,
)

VOCABS = [1, 2, 63, 64, 65, 1000, 4096]


def _logits(rows, vocab, seed=0):
    return np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)


def _weights(logits):
    return weights(logits, logits.max(axis=1), np.ones(len(logits), np.float32))


@pytest.mark.parametrize("vocab", VOCABS)
def test_weights_are_a_softmax_without_its_sum(vocab):
    logits = _logits(5, vocab)
    got = _weights(logits)
    exact = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    assert got.shape == (5, padded_width(vocab))
    np.testing.assert_allclose(got[:, :vocab], exact, rtol=2e-6)
    assert not got[:, vocab:].any()
    np.testing.assert_allclose(block_ends(got)[:, -1], exact.sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize("vocab", VOCABS)
def test_log_sum_exp(vocab):
    logits = _logits(5, vocab)
    exact = np.log(np.exp(logits.astype(np.float64)).sum(axis=1))
    np.testing.assert_allclose(log_sum_exp(logits), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("vocab", VOCABS)
def test_a_row_does_not_depend_on_the_others(vocab):
    logits = _logits(33, vocab)
    uniform = np.array([draw(1, 0, row) for row in range(33)])
    together = draw_tokens(_weights(logits), uniform)
    sums = block_ends(_weights(logits))
    totals = log_sum_exp(logits)
    for row in range(33):
        for start in (row, max(0, row - 2)):
            part = logits[start : row + 1]
            alone = _weights(np.ascontiguousarray(part))
            assert (block_ends(alone)[-1] == sums[row]).all()
            assert draw_tokens(alone, uniform[start : row + 1])[-1] == together[row]
            assert log_sum_exp(part)[-1] == totals[row]


@pytest.mark.parametrize("vocab", [3, 64, 200])
def test_drawing_inverts_the_cumulative_distribution(vocab):
    values = _weights(_logits(1, vocab))
    running = np.cumsum(values[0].astype(np.float64))
    uniform = np.linspace(0, 1, 500, endpoint=False)
    got = draw_tokens(np.repeat(values, 500, axis=0), uniform)
    expected = np.searchsorted(running, uniform * running[-1], side="right")
    # Sums in another order may differ in the last bit, at a border between two tokens.
    assert (got == expected).mean() > 0.99
    assert np.abs(got - expected).max() <= 1


def test_impossible_tokens_are_never_drawn():
    rows = np.zeros((1000, 256), np.float32)
    rows[:, [63, 64, 200]] = (1e-30, 1.0, 1e-20)
    uniform = np.concatenate((np.linspace(0, 1, 998, endpoint=False), [0.0, 1 - 2**-53]))
    assert set(draw_tokens(rows, uniform).tolist()) <= {63, 64, 200}


def test_frequencies_follow_the_probabilities():
    values = _weights(_logits(1, 30))
    expected = values[0, :30] / values[0, :30].sum() * 20000
    uniform = np.array([draw(11, 0, position) for position in range(20000)])
    got = np.bincount(draw_tokens(np.repeat(values, 20000, axis=0), uniform), minlength=30)
    common = expected >= 5
    chi_square = ((got - expected)[common] ** 2 / expected[common]).sum()
    assert chi_square < 58.3  # at most 29 degrees, p = 0.001
    assert got[~common].sum() < 60


@pytest.mark.parametrize("vocab", VOCABS)
@pytest.mark.parametrize("count", [1, 3, 20, 5000])
def test_top_ids_prefer_the_lower_id_among_equals(vocab, count):
    values = np.random.default_rng(1).integers(0, 12, vocab).astype(np.float32)
    expected = sorted(range(vocab), key=lambda i: (-values[i], i))[:count]
    assert top_ids(values, count).tolist() == expected


@pytest.mark.parametrize("size", [1, 63, 64, 65, 500])
def test_the_place_of_a_sum(size):
    values = np.random.default_rng(size).integers(1, 9, size).astype(np.float32)
    running, ends = np.cumsum(values), running_ends(values)  # small integers: sums are exact
    for target in (0, 1, *running[:: max(1, size // 50)], running[-1], running[-1] + 1):
        reached = min(np.searchsorted(running, target, "left"), size - 1)
        passed = min(np.searchsorted(running, target, "right"), size - 1)
        assert place_of_sum(values, ends, float(target), passing=False) == reached
        assert place_of_sum(values, ends, float(target), passing=True) == passed


def test_drawing_one_of_few():
    values = np.array([1, 2, 1], np.float32)
    uniform = [0.0, 0.24, 0.25, 0.74, 0.75, 1 - 2**-53]
    assert [draw_place(values, u) for u in uniform] == [0, 0, 1, 1, 2, 2]
