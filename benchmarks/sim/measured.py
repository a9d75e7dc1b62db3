"""What a simulation has to know of a real deployment, measured of it while nobody uses it.

How long steps take is what `inlay calibrate` finds. What is in front of the instances, which are
the dispatcher, HTTP and the load generator, is found by requests one after the other: what their
first tokens take beside the steps, and what all of it takes of the cores.
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
from benchmarks.cluster.workloads import Arrival, random_prompt
from inlay.cluster.calibrate import Calibration, calibrate
from inlay.cluster.chooser import timing_kind
from inlay.cluster.control import Member
from inlay.cluster.setup import DISPATCHER
from inlay.core.instance_messages import InstanceInfo
from inlay.core.instance_socket import connect_instance
from inlay.sim.measured_time import Fit, read_calibration
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
        core_s: of all cores, for each request.
    """

    delay_s: float
    token_s: float
    core_s: float


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
    seed: int,
    expected: Callable[[Sequence[Arrival]], Floats],
) -> Front:
    """Ask for prompts of these lengths that nobody has seen, one after the other.

    Args:
        expected: what each first token takes where nothing is in front.
    """
    draw = random.Random(seed)
    fresh = [replace(one, prompt=random_prompt(draw, len(one.prompt))) for one in arrivals]
    own = psutil.Process()
    processes = [own, *(one for one in own.children() if DISPATCHER in one.cmdline())]
    before_s = _core_s(processes)
    records = unloaded(url, fresh)
    core_s = (_core_s(processes) - before_s) / len(fresh)
    delay_R = np.array([ttft_s(record) for record in records]) - expected(fresh)
    tokens_R = np.array([len(one.prompt) for one in fresh])
    token_s, delay_s = np.polyfit(tokens_R, delay_R, 1)
    if token_s < 0:
        token_s, delay_s = 0.0, delay_R.mean()
    return Front(delay_s=float(delay_s), token_s=float(token_s), core_s=core_s)


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
