"""How few instances could do what a trace needs, before anything is simulated.

A step time is a sum of maxima of linear forms, so steps together take at least what the same forms
give for all that they compute. Prompts have their whole prefix cached where an earlier request had
it, and no instance ever waits: a fleet needs at least as many as this says, and mostly more.

Shapes: `R` requests, `F` features.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.sim.forms import FormRow, form
from inlay.sim.planner.candidates import Candidate
from inlay.sim.planner.demand import Demand
from inlay.sim.step_time import FEATURES

_HALVINGS = 40


@dataclass(frozen=True, kw_only=True)
class Bound:
    """What a trace needs of a candidate.

    Attributes:
        instances: a part of one counts; infinite where no number of them is enough.
        reason: why none is; empty where some are.
        missing: then, how many times what there is would be enough.
    """

    instances: float
    reason: str = ""
    missing: float = 1.0

    @property
    def least(self) -> int:
        """Whole instances."""
        return max(1, math.ceil(self.instances))


def bound(candidate: Candidate, demand: Demand, attain: float) -> Bound:
    """The fewest instances of a candidate that could serve its phases of all requests.

    Args:
        attain: the share of requests that are to keep all objectives.
    """
    none = _room(candidate, demand, attain)
    if none is None and candidate.role != "decode" and math.isfinite(demand.slo.ttft_s):
        none = _too_slow(alone_R(candidate, demand), demand.slo.ttft_s, attain, "TTFT", "a prompt")
    if none is None and candidate.role != "prefill" and math.isfinite(demand.gap_s):
        none = _too_slow(_token_R(candidate, demand), demand.gap_s, attain, "TBT", "a token")
    if none is not None:
        return none
    window_s = demand.prefill_s if candidate.role == "prefill" else demand.decode_s
    return Bound(instances=_busy_s(candidate, demand) / window_s)


def _room(candidate: Candidate, demand: Demand, attain: float) -> Bound | None:
    room = candidate.instance.num_pages * candidate.instance.page_tokens
    tokens_R = demand.input_R + demand.output_R
    share = float(np.mean(tokens_R <= room))
    if share >= attain:
        return None
    needed = float(np.quantile(tokens_R, attain, method="higher"))
    return _none(
        f"memory: only {share:.1%} of the requests fit into its room for {room:,} tokens, "
        f"{attain:.1%} have to: {needed:,.0f} tokens",
        needed / room,
    )


def _too_slow(
    seconds_R: NDArray[np.float64], objective_s: float, attain: float, name: str, what: str
) -> Bound | None:
    share = float(np.mean(seconds_R <= objective_s))
    if share >= attain:
        return None
    needed_s = float(np.quantile(seconds_R, attain, method="higher"))
    times = needed_s / objective_s
    return _none(
        f"{name}: only {share:.1%} of the requests can keep {objective_s:g} s, {attain:.1%} have "
        f"to: {what} alone takes {needed_s:.3g} s for so many, {times:,.{int(times < 10)}f} times "
        "as long",
        times,
    )


def _none(reason: str, missing: float) -> Bound:
    """That no number of instances is enough."""
    return Bound(instances=math.inf, reason=reason, missing=missing)


def alone_R(candidate: Candidate, demand: Demand) -> NDArray[np.float64]:
    """Seconds that each prompt takes on an instance that has nothing else to do, (R,)."""
    one = candidate.instance
    steps_R = np.ceil(demand.new_R / one.prefill_chunk)
    x_RF = np.zeros((len(steps_R), len(FEATURES)))
    x_RF[:, FEATURES.index("prefill_step")] = steps_R
    x_RF[:, FEATURES.index("prefill_token")] = demand.new_R
    x_RF[:, FEATURES.index("prefill_pair")] = demand.pairs_R
    x_RF[:, FEATURES.index("logit_row")] = 1
    x_RF[:, FEATURES.index("expert")] = steps_R * _experts(candidate, demand.new_R / steps_R)
    return one.step_time.seconds(x_RF)


def _token_R(candidate: Candidate, demand: Demand) -> NDArray[np.float64]:
    """Seconds of a step that has one row of each request alone, (R,)."""
    x_RF = np.zeros((len(demand.input_R), len(FEATURES)))
    for name in ("decode_step", "decode_row", "logit_row"):
        x_RF[:, FEATURES.index(name)] = 1
    x_RF[:, FEATURES.index("decode_context")] = demand.input_R
    x_RF[:, FEATURES.index("expert")] = _experts(candidate, 1.0)
    return candidate.instance.step_time.seconds(x_RF)


def _busy_s(candidate: Candidate, demand: Demand) -> float:
    """Of all instances together, in as few and as even steps as objectives and memory let them."""
    one, role = candidate.instance, candidate.role
    prefills = role != "decode"
    decodes = role != "prefill"
    tokens = demand.new_R.sum() if prefills else 0.0
    rows = demand.rows_R.sum() if decodes else 0.0
    prompt_steps = tokens / one.max_batch_tokens
    # Prefixes that requests have in common are in memory once, so they are left out of what it has
    # to hold.
    held = (demand.rows_R * (demand.new_R + demand.output_R / 2)).sum() if decodes else 0.0
    least = max(
        prompt_steps,
        rows / one.max_running,
        held / (one.num_pages * one.page_tokens),
    )
    all_F = form(
        prefill_token=tokens,
        prefill_pair=demand.pairs_R.sum() if prefills else 0.0,
        decode_row=rows,
        decode_context=demand.context_R.sum() if decodes else 0.0,
        logit_row=rows + len(demand.new_R),
    )

    def seconds(steps: float) -> float:
        once_F = form(
            prefill_step=prompt_steps,
            decode_step=steps - prompt_steps,
            expert=steps * float(_experts(candidate, (tokens + rows) / steps)),
        )
        return _seconds(candidate, all_F + once_F)

    if not decodes or seconds(least) <= least * demand.gap_s:
        return seconds(least)
    enough = least
    while seconds(enough) > enough * demand.gap_s:
        enough *= 2
        if enough > 1e6 * least:  # a step alone takes longer
            return math.inf
    for _ in range(_HALVINGS):
        middle = (least + enough) / 2
        if seconds(middle) > middle * demand.gap_s:
            least = middle
        else:
            enough = middle
    return seconds(enough)


def _seconds(candidate: Candidate, x_F: FormRow) -> float:
    return float(candidate.instance.step_time.seconds(x_F[None])[0])


def _experts(
    candidate: Candidate, tokens: float | NDArray[np.float64]
) -> float | NDArray[np.float64]:
    """Different ones of a layer that a step of so many tokens reads."""
    one = candidate.instance
    if not one.experts:
        return 0.0
    return one.experts * (1 - (1 - one.experts_per_token / one.experts) ** tokens)
