"""Linear forms of what a step computes, and how parts of its time are made of them.

A form is an array with a number per feature of `step_time`; a part of a step is as long as the
longest of its forms.

Shapes: `F` = 8 features.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from inlay.sim.step_time import FEATURES, NUM_FEATURES

FormRow = NDArray[np.float64]
"""One form, (F,)."""
Part = tuple[FormRow, ...]


def form(**counts: float) -> FormRow:
    """The form with these coefficients, by names of features, and 0 elsewhere."""
    row_F = np.zeros(NUM_FEATURES)
    for name, count in counts.items():
        row_F[FEATURES.index(name)] = count
    return row_F


STEP = form(prefill_step=1, decode_step=1)
"""1 for each step."""
TOKENS = form(prefill_token=1, decode_row=1)
"""All tokens of a step."""
ROWS = form(decode_row=1)
CONTEXT = form(decode_context=1)
PROMPT = form(prefill_token=1)
PAIRS = form(prefill_pair=1)
LOGITS = form(logit_row=1)
EXPERTS = form(expert=1)


def longest(parts: Iterable[Part]) -> Part:
    """The part that is as long as the longest of these: they run beside each other."""
    return _needed([row_F for part in parts for row_F in part])


def summed(parts: Iterable[Part]) -> Part:
    """The part that is as long as all of these together: they run one after the other.

    Cost: its forms are as many as there are ways to take one of each part.
    """
    sums: Part = (np.zeros(NUM_FEATURES),)
    for part in parts:
        sums = _needed([sum_F + row_F for sum_F in sums for row_F in part])
    return sums


def in_halves(part: Part) -> Part:
    """Two steps of half the tokens each: what is read once in a step is read in both."""
    once_F = (STEP + EXPERTS) > 0
    return tuple(row_F * np.where(once_F, 2.0, 1.0) for row_F in part)


def _needed(rows: list[FormRow]) -> Part:
    """Those that no other one is at least as long as for all steps; of equals one."""
    rows_RF = np.unique(np.array(rows), axis=0)
    covers_RR = (rows_RF[:, None] >= rows_RF).all(axis=2)
    return tuple(rows_RF[covers_RR.sum(axis=0) == 1])
