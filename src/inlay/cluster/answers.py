"""What all instances of a deployment answer, put together as if one had."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.core.errors import NoInstanceError
from inlay.core.messages import EngineStats, LoadProgress, SessionBlocks

Answer = TypeVar("Answer")

_ANSWER_S = 10.0
_UNLOADED = LoadProgress(loaded_bytes=0, total_bytes=0, seconds=0.0, over=False)


def load_progress(instances: Instances) -> LoadProgress:
    """How much of the weights is in memory; of the seconds, the most."""
    told = [one.progress for one in instances if one.progress is not None]
    if not told:
        return _UNLOADED
    return LoadProgress(
        loaded_bytes=sum(progress.loaded_bytes for progress in told),
        total_bytes=sum(progress.total_bytes for progress in told),
        seconds=max(progress.seconds for progress in told),
        over=all(progress.over for progress in told),
    )


async def stats(instances: Instances) -> EngineStats:
    """Gauges and totals added up, after all messages sent so far.

    Raises:
        NoInstanceError: none answered in ten seconds.
    """
    told = await _ask(instances, lambda one: one.stats(_ANSWER_S))
    total: dict[str, Any] = {}
    for name in EngineStats.__struct_fields__:
        values = [getattr(one, name) for one in told]
        if isinstance(values[0], dict):
            keys = {key: None for value in values for key in value}
            total[name] = {key: sum(value.get(key, 0) for value in values) for key in keys}
        elif isinstance(values[0], tuple):
            total[name] = tuple(item for value in values for item in value)
        elif name == "weight_version":
            total[name] = instances.weights.version
        else:
            total[name] = sum(values)
    return EngineStats(**total)


async def hint_session(instances: Instances, session: str, *, paused: bool) -> SessionBlocks:
    """Tell all of a session; what the one says that knows most of it. Raises as `stats`."""
    told = await _ask(
        instances,
        lambda one: one.hint_session(session, paused=paused, timeout_s=_ANSWER_S),
    )
    return max(told, key=lambda blocks: (blocks.num_blocks, blocks.on_device))


async def _ask(instances: Instances, ask: Callable[[Instance], Awaitable[Answer]]) -> list[Answer]:
    """What those say that do; at least one does."""
    asked = [ask(one) for one in instances if one.slot is not None]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    told = [answer for answer in answers if not isinstance(answer, BaseException)]
    if not told:
        raise NoInstanceError(f"no instance answers ({instances.describe()})")
    return told
