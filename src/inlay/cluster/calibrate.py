"""Measures how long the steps of a running instance take, for the timing model of its kind.

Prompts of several lengths, alone and behind cached ones, then decodes in batches and in long
contexts. The instance reports its steps as it does to every dispatcher, so what is learned is what
dispatchers would learn from requests like these.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from inlay.cluster.control import Member
from inlay.cluster.instance import Connect
from inlay.cluster.instance_link import InstanceLink
from inlay.cluster.timing import TimingModel, features, relative_fit
from inlay.core.errors import EngineDiedError, EngineError, InlayError, WaitTimeoutError
from inlay.core.failures import error_of
from inlay.core.instance_messages import FromInstance, InstanceInfo, LoadReport, StepSample
from inlay.core.messages import GenerateRequest, OutputBatch, SamplingParams
from inlay.core.token_ids import pack_token_ids

_PROMPTS = (16, 64, 256, 1024, 4096)
_BATCHES = (1, 2, 4, 8, 16, 32, 64)
_CONTEXTS = (256, 1024, 4096)
_DECODES = 16
_REPEATS = 3
_ANSWER_S = 60.0
_REPORT_S = 3.0  # an idle instance reports each second


@dataclass(frozen=True)
class Calibration:
    """What was measured of one instance.

    Attributes:
        info: of the instance.
        model: of its kind.
        num_steps: that it was learned from.
        median_error: of these steps' times, relative.
    """

    info: InstanceInfo
    model: TimingModel
    num_steps: int
    median_error: float


@dataclass(frozen=True)
class _Load:
    """Requests that are sent together: one for each prompt."""

    prompts: tuple[tuple[int, ...], ...]
    output_tokens: int


async def calibrate(member: Member, connect: Connect, *, budget_s: float) -> Calibration:
    """Measure an instance. It serves others meanwhile, whose steps are counted, too.

    Args:
        budget_s: no load begins after it; a tenth of it is little.

    Raises:
        WaitTimeoutError: the instance does not answer.
        EngineError: a request failed, or the instance was lost.
    """
    client = _Client(member, connect)
    try:
        info = await client.introduced()
        end_s = time.monotonic() + budget_s
        for load in _loads(info):
            await client.run(load)
            if time.monotonic() >= end_s:
                break
        await client.last_report()
    finally:
        client.close()
    return _learned(info, client.samples)


def _learned(info: InstanceInfo, samples: list[StepSample]) -> Calibration:
    if not samples:
        raise EngineError(f"{info.name} has reported no step: it may be too loaded; try again")
    x_SF = features(samples)
    took_S = np.array([sample.seconds for sample in samples])
    # All at once first: one that learns step by step from a guess takes for outliers what the guess
    # is wrong about, and then believes too little of it.
    fit_F = relative_fit(x_SF, took_S)
    model = TimingModel(np.maximum(fit_F, fit_F.max() * 1e-9))
    for first in range(0, len(samples), 64):
        model.observe(samples[first : first + 64])
    error = float(np.median(np.abs(took_S / (x_SF @ model.coefficients) - 1.0)))
    return Calibration(info, model, len(samples), error)


def _loads(info: InstanceInfo) -> Iterator[_Load]:
    """Rounds of all kinds, so that a short budget has something of each."""
    draw = random.Random(0)
    room = min(info.engine.max_context_tokens, info.engine.num_pages * info.engine.page_tokens // 2)

    def prompt(size: int) -> tuple[int, ...]:
        return tuple(draw.randrange(info.engine.vocab_size) for _ in range(size))

    for _ in range(_REPEATS):
        for size in _PROMPTS:
            if size + _DECODES < room:
                first = prompt(size)
                yield _Load((first,), 1)
                if 2 * size + _DECODES < room:
                    yield _Load((first + prompt(size),), 1)  # behind what is cached now
        for batch in _BATCHES:
            if batch <= info.max_running and batch * (16 + _DECODES) < room:
                yield _Load(tuple(prompt(16) for _ in range(batch)), _DECODES)
        for context in _CONTEXTS:
            batch = min(4, info.max_running)
            if batch * (context + _DECODES) < room:
                yield _Load(tuple(prompt(context) for _ in range(batch)), _DECODES)


class _Client:
    """The connection to the instance."""

    def __init__(self, member: Member, connect: Connect) -> None:
        self._member = member
        self._salt = f"calibrate {secrets.token_hex(4)}"  # nobody's blocks are reused
        self._number = 0
        self._open: set[str] = set()
        self._failure: InlayError | None = None
        self._news = asyncio.Event()
        self._info: InstanceInfo | None = None
        self._reports = 0
        self.samples: list[StepSample] = []
        self._link = InstanceLink(lambda: connect(member.address), "calibrate", self)

    async def introduced(self) -> InstanceInfo:
        await self._until(lambda: self._info is not None, _ANSWER_S, "said what it is")
        assert self._info is not None
        return self._info

    async def run(self, load: _Load) -> None:
        """Send requests and wait for their ends."""
        params = SamplingParams(temperature=0.0, max_tokens=load.output_tokens, ignore_eos=True)
        for token_ids in load.prompts:
            self._number += 1
            request_id = f"calibrate-{self._number}"
            self._open.add(request_id)
            self._link.send(
                GenerateRequest(
                    request_id=request_id,
                    prompt=pack_token_ids(token_ids),
                    params=params,
                    arrival_s=0.0,
                    age_s=0.0,
                    cache_salt=self._salt,
                )
            )
        await self._until(lambda: not self._open, _ANSWER_S, "answered")

    async def last_report(self) -> None:
        """Wait for what it has not reported yet."""
        wanted = self._reports + 1
        await self._until(lambda: self._reports >= wanted, _REPORT_S, "reported")

    def close(self) -> None:
        self._link.close()

    def received(self, message: FromInstance) -> None:
        """See `LinkOwner`."""
        match message:
            case InstanceInfo():
                self._info = message
            case LoadReport():
                self._reports += 1
                self.samples += message.samples
            case OutputBatch():
                for output in message.outputs:
                    self._failure = self._failure or error_of(output)
                    if output.finished:
                        self._open.discard(output.request_id)
            case _:
                return
        self._news.set()

    def lost(self, reason: str) -> None:
        """See `LinkOwner`."""
        self._failure = EngineDiedError(f"{self._member.name}: {reason}")
        self._news.set()

    async def _until(self, done: Callable[[], bool], timeout_s: float, what: str) -> None:
        async def wait() -> None:
            while not done():
                if self._failure is not None:
                    raise self._failure
                self._news.clear()
                await self._news.wait()

        try:
            await asyncio.wait_for(wait(), timeout_s)
        except TimeoutError:
            raise WaitTimeoutError(
                f"{self._member.name} has not {what} in {timeout_s:g} s: is it overloaded?"
            ) from None
