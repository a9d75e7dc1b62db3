import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.engine.filters import likely_tokens


def _kept(values, *, top_k=0, top_p=1.0, min_p=0.0, scale=1.0):
    logits = np.log(np.array(values, np.float32)) / np.float32(scale)
    highest = logits.max()
    ids, kept = likely_tokens(logits, highest, scale, top_k=top_k, top_p=top_p, min_p=min_p)
    assert (kept == np.exp((logits[ids] - highest) * np.float32(scale))).all()
    return ids.tolist()


def _reference(values, *, top_k, top_p, min_p):
    """The definition, token by token."""
    logits = np.log(np.array(values, np.float32))
    row = np.exp(logits - logits.max()).astype(np.float64)
    left = [i for i in range(len(values)) if row[i] > 0 and row[i] >= np.float32(min_p)]
    left.sort(key=lambda i: (-row[i], i))
    if top_k:
        left = left[:top_k]
    total, running, kept = sum(row[i] for i in left), 0.0, []
    for i in left:
        kept.append(i)
        running += row[i]
        if top_p < 1.0 and running >= top_p * total:
            break
    return sorted(kept)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"top_k": 2}, [0, 2]),
        ({"top_k": 9}, [0, 1, 2, 3]),
        ({"top_p": 0.5}, [0]),
        ({"top_p": 0.51}, [0, 2]),
        ({"top_p": 0.8}, [0, 2]),
        ({"top_p": 1e-9}, [0]),
        ({"min_p": 0.31}, [0, 2]),
        ({"min_p": 1.0}, [0]),
        ({"top_k": 3, "top_p": 0.9}, [0, 1, 2]),
        ({"min_p": 0.31, "top_p": 0.6}, [0]),
        ({"min_p": 0.31, "scale": 30.0}, [0, 2]),
    ],
)
def test_each_filter(options, expected):
    assert _kept([0.5, 0.15, 0.3, 0.05], **options) == expected


def test_of_equal_tokens_the_lower_id_stays():
    assert _kept([0.25, 0.25, 0.25, 0.25], top_k=2) == [0, 1]
    assert _kept([0.25, 0.25, 0.25, 0.25], top_p=0.6) == [0, 1, 2]
    assert _kept([0.5] * 1000, top_p=0.6) == list(range(600))


@given(
    logits=st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=300)
    | st.builds(
        lambda size, spread: np.random.default_rng(size).normal(0, spread, size),
        st.integers(300, 9000),
        st.sampled_from([0.1, 0.5, 2.0]),
    ),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 0.999),
    min_p=st.sampled_from([0.0, 0.01, 0.2]),
)
def test_against_the_definition(logits, top_k, top_p, min_p):
    values = np.exp(np.array(logits, np.float32))
    got = _kept(values, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = _reference(values, top_k=top_k, top_p=top_p, min_p=min_p)
    # Sums in another order may move the border of top-p by one token.
    assert len(set(got) ^ set(expected)) <= 1
