import numpy as np
import pytest

from inlay.core.messages import SamplingParams
from inlay.engine.sampling import ChoiceSampler, Sampler, token_logprobs

VOCAB = 300


def _sampler(choice=0, *, seed=1, prompt=(), end_ids=(), mask=None, position=0, **params):
    sampler = ChoiceSampler(
        SamplingParams(**params),
        seed=seed,
        choice=choice,
        prompt_ids=list(prompt),
        end_ids=frozenset(end_ids),
        mask=mask,
    )
    for token in range(position):
        sampler.add(token)
    return sampler


def _logits(rows=1, seed=0):
    return np.random.default_rng(seed).normal(0, 2, (rows, VOCAB)).astype(np.float32)


def _mixed():
    """Samplers with every option, greedy ones among them."""
    options = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.3, "top_k": 20, "top_p": 0.95},
        {"temperature": 2.0, "top_p": 0.7},
        {"temperature": 1.0, "min_p": 0.05, "logprobs": 3},
        {"temperature": 0.0, "repetition_penalty": 1.5, "prompt": range(50)},
        {"temperature": 1.0, "presence_penalty": 1.0, "frequency_penalty": 0.5, "position": 9},
        {"temperature": 0.0, "logit_bias": {7: 50.0}, "logprobs": 0},
        {"temperature": 1.0, "min_tokens": 4, "end_ids": range(100)},
    ]
    return [_sampler(seed=n, **option) for n, option in enumerate(options)]


def test_greedy_takes_the_most_likely():
    logits = _logits(4)
    expected = logits.argmax(axis=1).tolist()
    got = Sampler(VOCAB).sample(logits, [_sampler(temperature=0.0) for _ in range(4)])
    assert got.token_ids == expected
    assert got.possible == [True] * 4
    assert got.logprobs == [None] * 4


def test_a_sample_does_not_depend_on_its_neighbours():
    samplers = _mixed()
    logits = _logits(len(samplers))
    together = Sampler(VOCAB).sample(logits.copy(), samplers)
    for n, sampler in enumerate(samplers):
        alone = Sampler(VOCAB).sample(logits[n : n + 1].copy(), [sampler])
        assert alone.token_ids == [together.token_ids[n]]
        assert alone.logprobs == [together.logprobs[n]]
    order = [3, 8, 0, 5, 1, 7, 2, 6, 4]
    shuffled = Sampler(VOCAB).sample(logits[order], [samplers[n] for n in order])
    assert shuffled.token_ids == [together.token_ids[n] for n in order]


def test_choices_and_positions_draw_differently():
    logits = np.zeros((1, VOCAB), np.float32)
    sampler = Sampler(VOCAB)
    tokens = {
        sampler.sample(logits.copy(), [_sampler(choice, position=position)]).token_ids[0]
        for choice in range(4)
        for position in range(4)
    }
    assert len(tokens) > 12


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 1.0, "top_k": 8},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 1.3, "min_p": 0.1},
        {"temperature": 0.8, "top_k": 12, "top_p": 0.9, "min_p": 0.02},
    ],
)
def test_frequencies_follow_the_filtered_distribution(params):
    draws = 6000
    logits = _logits(seed=4)
    row = logits[0].astype(np.float64) / params["temperature"]
    weight = np.exp(row - row.max())
    weight[weight < params.get("min_p", 0.0)] = 0
    order = np.argsort(-weight, kind="stable")
    weight[order[params.get("top_k", VOCAB) :]] = 0
    running = np.cumsum(weight[order])
    last = np.searchsorted(running, params.get("top_p", 1.0) * running[-1])
    weight[order[last + 1 :]] = 0
    expected = weight / weight.sum() * draws
    samplers = [_sampler(seed=seed, **params) for seed in range(draws)]
    tokens = Sampler(VOCAB).sample(np.repeat(logits, draws, axis=0), samplers).token_ids
    got = np.bincount(tokens, minlength=VOCAB)
    assert not got[expected == 0].any()
    common = expected >= 5
    rest = np.array([expected[~common].sum()]), np.array([got[~common].sum()])
    chi_square = ((got - expected)[common] ** 2 / expected[common]).sum()
    if rest[0] > 5:
        chi_square += float(((rest[1] - rest[0]) ** 2 / rest[0]).sum())
    degrees = int(common.sum())
    assert chi_square < degrees + 3.3 * np.sqrt(2 * degrees) + 6  # about p = 0.001


def test_ends_are_banned_until_min_tokens():
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 5] = 10
    options = {"temperature": 0.0, "min_tokens": 2, "end_ids": {5}}
    for position, allowed in ((0, False), (1, False), (2, True)):
        sampler = _sampler(position=position, **options)
        token = Sampler(VOCAB).sample(logits.copy(), [sampler]).token_ids[0]
        assert (token == 5) is allowed


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_reported(bad):
    logits = _logits(3)
    logits[1, 17] = bad
    samples = Sampler(VOCAB).sample(logits, [_sampler(), _sampler(), _sampler(temperature=0.0)])
    assert samples.possible == [True, False, True]


def test_forbidding_every_token_is_reported():
    class Nothing:
        def apply(self, logits):
            logits[:] = -np.inf

    samples = Sampler(VOCAB).sample(_logits(2), [_sampler(mask=Nothing()), _sampler()])
    assert samples.possible == [False, True]


def test_logprobs_are_of_the_raw_distribution():
    logits = _logits()
    exact = logits[0] - np.log(np.exp(logits[0].astype(np.float64)).sum())
    best = np.argsort(-exact)[:3]
    sampler = _sampler(temperature=0.0, logprobs=3, logit_bias={11: 100.0})
    samples = Sampler(VOCAB).sample(logits, [sampler])
    assert samples.token_ids == [11]
    logprob = samples.logprobs[0]
    assert logprob.token_id == 11
    assert logprob.logprob == pytest.approx(exact[11], abs=1e-5)
    assert [token for token, _ in logprob.top] == best.tolist()
    assert [value for _, value in logprob.top] == pytest.approx(exact[best].tolist(), abs=1e-5)


def test_logprobs_of_given_tokens():
    logits = _logits(2)
    first, second = token_logprobs(logits, [3, 4], [0, 2])
    assert first.top == ()
    assert len(second.top) == 2
    assert first.token_id == 3


def test_tiny_temperatures_do_not_overflow():
    logits = _logits() * 1000
    for temperature in (1e-30, 1e-4, 0.01):
        samples = Sampler(VOCAB).sample(logits.copy(), [_sampler(temperature=temperature)])
        assert samples.token_ids == [int(logits.argmax())]


def test_huge_temperatures_keep_forbidden_tokens_out():
    class OnlySeven:
        def apply(self, logits_V):
            logits_V[:7] = logits_V[8:] = -np.inf

    for temperature in (1e20, 1e38, 1e60):
        hot = _sampler(temperature=temperature, mask=OnlySeven())
        assert Sampler(VOCAB).sample(_logits(), [hot]).token_ids == [7]
