"""What a simulation has to know of a real deployment, measured of it while nobody uses it.

How long steps take is what `inlay calibrate` finds. What is in front of the instances, which are
the dispatcher, HTTP and the load generator, is found by requests one after the other: what their
first tokens take beside the steps, and what all of it takes of the cores.

Shapes: `R` requests.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import zmq
from numpy.typing import NDArray

from benchmarks.cluster.capacity import unloaded
from benchmarks.cluster.figures import ttft_s
from benchmarks.cluster.workloads import PAGE_TOKENS, Arrival, random_prompt
from inlay.cluster.calibrate import Calibration, calibrate
from inlay.cluster.chooser import timing_kind
from inlay.cluster.control import Member
from inlay.cluster.setup import DISPATCHER
from inlay.core.instance_messages import InstanceInfo
from inlay.core.instance_socket import connect_instance
from inlay.sim.measured_time import Fit, read_calibration
from inlay.sim.results import Results
from inlay.sim.step_time import StepTime
from tests.support.cluster import SECRET

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Steps:
    """How long steps of instances take, which are alike.

    Attributes:
        info: of one of them.
        alone: while the others are idle.
        together: while all compute.
    """

    info: InstanceInfo
    alone: Fit
    together: Fit


@dataclass(frozen=True, kw_only=True)
class Front:
    """What is in front of instances.

    Attributes:
        delay_s, token_s: that it adds to a first token, and more for each token of the prompt.
        divided_s: more where one instance computes the prompt for another.
        core_s: of all cores, for each request.
    """

    delay_s: float
    token_s: float
    divided_s: float
    core_s: float

    def delays_s(self, tokens_R: Floats, divided_R: NDArray[np.bool_]) -> Floats:
        """What it adds to first tokens."""
        added_s: Floats = self.delay_s + self.token_s * tokens_R + self.divided_s * divided_R
        return added_s


def steps(members: Sequence[Member], folder: Path, budget_s: float) -> Steps:
    """Calibrate the first instance alone, then all at once.

    Args:
        folder: gets what `inlay calibrate` would write of the first one, alone.
        budget_s: for each of the two.
    """
    (alone,) = asyncio.run(_calibrations(members[:1], budget_s))
    fit = _fit(alone, folder)
    if len(members) == 1:
        return Steps(info=alone.info, alone=fit, together=fit)
    beside = asyncio.run(_calibrations(members, budget_s))
    fits = [_fit(one, folder / "together") for one in beside]
    return Steps(info=alone.info, alone=fit, together=mean(fits))


def between(before: Steps, after: Steps) -> Steps:
    """Steps at a time between two at which they were measured."""
    return Steps(
        info=before.info,
        alone=mean([before.alone, after.alone]),
        together=mean([before.together, after.together]),
    )


def mean(fits: Sequence[Fit], weights: Sequence[float] | None = None) -> Fit:
    """Steps that take the mean of these, each of which is one form, as of calibrations."""
    forms = [fit.step_time.parts[0][0] for fit in fits]
    form_F = np.average(forms, axis=0, weights=weights)
    std = np.average([fit.relative_std for fit in fits], weights=weights)
    return Fit(step_time=StepTime(((tuple(form_F.tolist()),),)), relative_std=float(std))


def slower(fit: Fit, times: float) -> Fit:
    """Steps that take so many times as long."""
    form_F = times * np.array(fit.step_time.parts[0][0])
    return replace(fit, step_time=StepTime(((tuple(form_F.tolist()),),)))


def front(
    url: str,
    arrivals: Sequence[Arrival],
    chunk: int,
    seed: int,
    expected: Callable[[Sequence[Arrival]], Results],
) -> Front:
    """Ask for prompts of these lengths, one after the other, and each at once again.

    The second time next to nothing is computed, so that what is in front is most of what the first
    token takes. So it is with prompts just long enough to be divided.

    Args:
        chunk: longest prompts that are not divided, in tokens.
        expected: what a simulation says of requests, far apart, where nothing is in front.
    """
    draw = random.Random(seed)
    fresh = [replace(one, prompt=random_prompt(draw, len(one.prompt))) for one in arrivals]
    own = psutil.Process()
    processes = [own, *(one for one in own.children() if DISPATCHER in one.cmdline())]
    before_s = _core_s(processes)
    tokens_R, _, more_R = _added(url, [one for one in fresh for _ in range(2)], expected)
    core_s = (_core_s(processes) - before_s) / len(more_R)
    token_s, delay_s = np.polyfit(tokens_R[1::2], more_R[1::2], 1)
    known = Front(delay_s=float(delay_s), token_s=float(token_s), divided_s=0.0, core_s=core_s)
    longer = [replace(one, prompt=random_prompt(draw, chunk + 2 * PAGE_TOKENS)) for one in fresh]
    tokens_R, divided_R, more_R = _added(url, longer, expected)
    if not divided_R.any():
        return known
    rest_R = more_R - known.delays_s(tokens_R, np.zeros(len(tokens_R), bool))
    return replace(known, divided_s=float(np.median(rest_R[divided_R])))


def _added(
    url: str, arrivals: Sequence[Arrival], expected: Callable[[Sequence[Arrival]], Results]
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Of requests one after the other: tokens, whether they are divided, and what their first
    tokens took more than a simulation says.
    """
    results = expected(arrivals)
    ttft_R = np.array([ttft_s(record) for record in unloaded(url, arrivals)])
    return (
        results.input_tokens.astype(np.float64),
        results.prefill != results.decode,
        ttft_R - results.ttft_s,
    )


async def _calibrations(members: Sequence[Member], budget_s: float) -> list[Calibration]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def connect(address: str) -> "zmq.Socket[bytes]":
        return connect_instance(context, address, SECRET)

    try:
        return await asyncio.gather(
            *(calibrate(member, connect, budget_s=budget_s) for member in members)
        )
    finally:
        context.destroy(linger=0)


def _fit(calibration: Calibration, folder: Path) -> Fit:
    """As a simulation gets it: from a file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / timing_kind(calibration.info)
    calibration.model.save(file)
    return read_calibration(file)


def _core_s(processes: Sequence[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(time.user + time.system for time in times)
