"""New weights for the instances of a deployment: some at a time, while all of them serve.

An instance loads them beside those that serve, so it goes on meanwhile; it can fail by itself. What
it has afterwards it says to all dispatchers, so no other one has to be told of an update. One that
comes later, restarted or new, is given the weights that the others have.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.core.errors import (
    EngineDiedError,
    EngineError,
    InlayError,
    ModelNotFoundError,
    NoInstanceError,
    WeightsConflictError,
    WeightsError,
    WeightsPartialError,
)
from inlay.core.failures import restore
from inlay.core.messages import (
    InFlight,
    InstanceWeights,
    ServedWeights,
    SwapWeights,
    WeightsSwapped,
)

log = logging.getLogger(__name__)

Offer = Callable[[Path, str], Awaitable[str | None]]
"""Of a directory and its version: offers it to instances on other machines, and says where; None:
it cannot."""


async def offer_nothing(directory: Path, version: str) -> str | None:
    """An `Offer`: all instances see the directory."""
    return None


_SWAP_S = 3600.0  # that one instance may take; one that hangs is found by its silence


class Swaps:
    """Those of one dispatcher; another one may have its own at the same time.

    Args:
        at_once: how many instances load at a time, after the first.
        offer: what lies on this machine, to instances that do not see it.
        wall_s: Unix time.
    """

    def __init__(
        self,
        instances: Instances,
        *,
        at_once: int,
        offer: Offer = offer_nothing,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._instances = instances
        self._offer = offer
        self._at_once = at_once
        self._wall_s = wall_s
        self._lock = asyncio.Lock()  # an update, or one instance that is brought up to it
        self._updating = False
        self._late: list[Instance] = []
        self._bringing: asyncio.Task[None] | None = None
        instances.joined = self._joined

    async def swap(self, directory: Path, version: str, in_flight: InFlight) -> WeightsSwapped:
        """Have all instances serve new weights; returns when they do, or have refused them.

        Those that have this version are not asked, so it may be called again.

        Args:
            directory: as this process sees it. An instance that sees none of this name pulls them.

        Returns:
            What each instance has; with an error where some have not taken them.

        Raises:
            WeightsConflictError: an update is under way.
            NoInstanceError: there is none.
            InlayError: the first instance refuses them; nothing has changed anywhere.
        """
        if self._updating:
            raise WeightsConflictError("an update is under way: update again when it has ended")
        self._updating = True
        try:
            async with self._lock:
                began_s = time.monotonic()
                told = await self._update(
                    SwapWeights(str(directory), version, in_flight, self._wall_s())
                )
                return _together(version, time.monotonic() - began_s, told)
        finally:
            self._updating = False

    def close(self) -> None:
        """Bring nobody up any more."""
        if self._bringing is not None:
            self._bringing.cancel()

    async def _update(self, message: SwapWeights) -> list[InstanceWeights]:
        there = [one for one in self._instances if one.takes_requests]
        if not there:
            raise NoInstanceError(f"no instance takes requests ({self._instances.describe()})")
        told = [_have(one) for one in there if _version(one) == message.version]
        left = [one for one in there if _version(one) != message.version]
        # Another model is refused by the first one, before anything has changed.
        while left and all(one.error for one in told):
            told.append(await self._take(left.pop(0), message, alone=True))
        turns = asyncio.Semaphore(self._at_once)

        async def in_turn(one: Instance) -> InstanceWeights:
            async with turns:
                return await self._take(one, message)

        return told + await asyncio.gather(*(in_turn(one) for one in left))

    async def _take(
        self, one: Instance, message: SwapWeights, *, alone: bool = False
    ) -> InstanceWeights:
        """Have one instance take new weights; raises its refusal where it is `alone`."""
        try:
            swapped = await one.swap_weights(message, _SWAP_S)
            if swapped.error_code == ModelNotFoundError.code:  # the directory is not on its machine
                holders = await self._holders(message)
                if holders:
                    pulling = msgspec.structs.replace(message, holders=holders)
                    swapped = await one.swap_weights(pulling, _SWAP_S)
        except WeightsConflictError as error:
            return _refused(one, str(error), error.code)
        except EngineError as error:  # it is gone, or hangs
            log.warning("weights %s are not at %s: %s", message.version, one.name, error)
            return _refused(one, str(error), EngineDiedError.code)
        if swapped.error is None:
            return InstanceWeights(
                name=one.name,
                version=message.version,
                seconds=swapped.seconds,
                made_bytes=swapped.made_bytes,
            )
        code = swapped.error_code or WeightsError.code
        if alone:
            raise restore(code, swapped.error)
        log.warning("weights %s are not at %s: %s", message.version, one.name, swapped.error)
        return _refused(one, swapped.error, code)

    async def _holders(self, message: SwapWeights) -> tuple[str, ...]:
        """Who has the weights for those that do not see their directory."""
        directory = Path(message.directory)
        offered = (
            await self._offer(directory, message.version) if os.path.isdir(directory) else None
        )
        served = [one.info.weights for one in self._instances if one.info is not None]
        held = [one.held_at for one in served if one.version == message.version and one.held_at]
        return (*([] if offered is None else [offered]), *held)

    def _joined(self, instance: Instance) -> None:
        """An instance takes requests from now on; it may have older weights than the others."""
        if not self._updating and _is_up_to_date(instance, self._instances.weights.newest):
            return
        self._late.append(instance)
        if self._bringing is None or self._bringing.done():
            self._bringing = asyncio.ensure_future(self._bring())

    async def _bring(self) -> None:
        """Give those who came late what the others have."""
        while self._late:
            one = self._late.pop(0)
            async with self._lock:
                newest = self._instances.weights.newest
                if not one.takes_requests or _is_up_to_date(one, newest):
                    continue
                log.info("%s is given weights %s", one.name, newest.version)
                message = SwapWeights(newest.directory, newest.version, "finish", newest.asked_s)
                await self._take(one, message)


def _version(one: Instance) -> str:
    return "" if one.info is None else one.info.weights.version


def _is_up_to_date(one: Instance, newest: ServedWeights) -> bool:
    return one.info is None or (
        one.info.weights.version == newest.version or one.info.weights.asked_s >= newest.asked_s
    )


def _have(one: Instance) -> InstanceWeights:
    return InstanceWeights(name=one.name, version=_version(one))


def _refused(one: Instance, error: str, code: str) -> InstanceWeights:
    return InstanceWeights(name=one.name, version=_version(one), error=error, error_code=code)


def _together(version: str, seconds: float, told: Sequence[InstanceWeights]) -> WeightsSwapped:
    """One answer of all.

    Raises:
        InlayError: nobody has them.
    """
    told = sorted(told, key=lambda one: one.name)
    lacking = [one for one in told if one.error is not None]
    having = [one.name for one in told if one.error is None]
    if not having:
        raise restore(lacking[0].error_code or "", lacking[0].error or "")
    failed: InlayError | None = None
    if lacking:
        failed = WeightsPartialError(
            f"{', '.join(having)} serve {version}, not so "
            + "; ".join(f"{one.name}: {one.error}" for one in lacking)
            + ": update again"
        )
    return WeightsSwapped(
        version=version,
        seconds=seconds,
        error=None if failed is None else str(failed),
        error_code=None if failed is None else failed.code,
        made_bytes=sum(one.made_bytes for one in told),
        instances=tuple(told),
    )
