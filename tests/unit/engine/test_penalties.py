import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.messages import SamplingParams
from inlay.engine.penalties import Penalties

VOCAB = 40
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=150)


@given(
    prompt=TOKENS,
    output=TOKENS,
    presence=st.sampled_from([0.0, 0.7, -1.5]),
    frequency=st.sampled_from([0.0, 0.3, -0.4]),
    repetition=st.sampled_from([1.0, 1.3, 0.6]),
)
def test_against_the_definition(prompt, output, presence, frequency, repetition):
    params = SamplingParams(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition
    )
    logits = np.random.default_rng(0).normal(0, 2, VOCAB).astype(np.float32)
    expected = logits.astype(np.float64)
    for token in range(VOCAB):
        if token in prompt or token in output:
            expected[token] *= 1 / repetition if expected[token] > 0 else repetition
        if token in output:
            expected[token] -= presence + frequency * output.count(token)
    penalties = Penalties(params, prompt)
    for token in output:
        penalties.add(token)
    penalties.apply(logits)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-5)


def test_wanted_only_if_one_is_set():
    assert not Penalties.wanted(SamplingParams())
    assert Penalties.wanted(SamplingParams(repetition_penalty=1.1))
    assert Penalties.wanted(SamplingParams(presence_penalty=-0.1))
