"""The status of a cluster, as one of its dispatchers knows it."""

import asyncio
import time
from typing import Any

from inlay.cluster import picture
from inlay.cluster.dispatcher import Dispatcher
from inlay.cluster.figures import Figures
from inlay.cluster.instance import Instance
from inlay.cluster.kv_paths import KvPath
from inlay.cluster.status import (
    ClusterStatus,
    DecisionStatus,
    IndexStatus,
    InstanceStatus,
    PathStatus,
    RouteStatus,
)
from inlay.core.clock import Clock
from inlay.core.errors import EngineError
from inlay.core.messages import EngineStats, KvRoute

_SHOWN_DECISIONS = 40
_ANSWER_S = 5.0
_PATIENCE_S = 0.2
_FRESH_S = 0.5


class DispatcherStatus:
    """Takes the picture when somebody asks, at most every half second.

    Args:
        figures: of the server in front of the dispatcher.
        model: the name it serves.
    """

    def __init__(
        self, dispatcher: Dispatcher, figures: Figures, clock: Clock, *, model: str
    ) -> None:
        self._dispatcher = dispatcher
        self._figures = figures
        self._clock = clock
        self._model = model
        self._taken: tuple[float, ClusterStatus] | None = None
        self._stats: dict[str, EngineStats] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def take(self) -> ClusterStatus:
        """The status now. An instance that does not answer soon has the totals it had before."""
        if self._taken is not None and self._clock.now() - self._taken[0] < _FRESH_S:
            return self._taken[1]
        await self._ask()
        now_s = self._clock.now()
        status = self._status(now_s)
        self._taken = now_s, status
        return status

    def decision(self, request_id: str) -> dict[str, Any] | None:
        """The latest decision on a request, with its candidates; None if it is forgotten."""
        found = self._dispatcher.chooser.log.describe(self._clock.now())
        return next((entry for entry in found if entry["request"] == request_id), None)

    async def _ask(self) -> None:
        instances = {one.name: one for one in self._dispatcher.instances if one.slot is not None}
        for name in self._stats.keys() - instances.keys():
            del self._stats[name]
        for name, instance in instances.items():
            if name not in self._asking:
                self._asking[name] = asyncio.ensure_future(self._ask_one(name, instance))
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=_PATIENCE_S)

    async def _ask_one(self, name: str, instance: Instance) -> None:
        try:
            self._stats[name] = await instance.stats(_ANSWER_S)
        except EngineError:
            self._stats.pop(name, None)
        finally:
            del self._asking[name]

    def _status(self, now_s: float) -> ClusterStatus:
        dispatcher, figures = self._dispatcher, self._figures
        reference = dispatcher.instances.reference
        retries: dict[str, int] = {}
        for (_, why), count in dispatcher.retries.items():
            retries[why] = retries.get(why, 0) + count
        return ClusterStatus(
            taken_s=time.time(),
            server="dispatcher",
            model=self._model,
            policy=dispatcher.chooser.policy.name,
            window_s=picture.WINDOW_S,
            page_tokens=0 if reference is None else reference.engine.page_tokens,
            instances=[self._instance(name, now_s) for name in dispatcher.instances.names],
            traffic=picture.traffic(
                figures, now_s, waiting=dispatcher.num_waiting, retries=retries
            ),
            classes=picture.classes(figures, now_s, self._dispatcher.chooser.least_s()),
            history=picture.history(figures.tally, now_s),
            paths=self._paths(now_s),
            decisions=self._decisions(now_s),
            index=self._index(),
        )

    def _instance(self, name: str, now_s: float) -> InstanceStatus:
        instances, loads = self._dispatcher.instances, self._dispatcher.instances.loads
        instance = instances.find(name)
        described: dict[str, Any] = {
            "name": name,
            "role": instances.member(name).role,
            "state": instances.state(name),
            "retries": {
                why: count for (at, why), count in self._dispatcher.retries.items() if at == name
            },
            "busy": loads.busy(name, now_s),
        }
        if instance is None or instance.info is None:
            return InstanceStatus(**described)
        info, load, stats = instance.info, instance.report, self._stats.get(name)
        prefill_tokens_per_s, decode_step_s = loads.speeds(name, now_s, picture.WINDOW_S)
        described |= {
            "role": info.role,
            "run": info.run_id,
            "weight_version": info.weights.version,
            "host": info.host,
            "model": info.engine.model,
            "device": info.engine.placement or info.engine.device,
            "requests": len(instance.attempts),
            "max_running": info.max_running,
            "page_bytes": info.engine.page_bytes,
            "prefill_tokens_per_s": prefill_tokens_per_s,
            "decode_step_s": decode_step_s,
        }
        if instance.slot is not None:
            described["num_blocks"] = self._dispatcher.chooser.index.num_blocks(instance.slot)
        if load is not None:
            described |= {field: getattr(load, field) for field in _LOAD_FIELDS}
        if stats is not None:
            described |= picture.totals(stats)
        return InstanceStatus(**described)

    def _paths(self, now_s: float) -> list[PathStatus]:
        """What this dispatcher asked for, and what the instances' transfer engines say."""
        instances, paths = self._dispatcher.instances, self._dispatcher.kv_paths
        paths.keep(set(instances.names))
        names = {one.info.transfer: one.name for one in instances if one.info is not None}
        routes: dict[tuple[str, str], list[RouteStatus]] = {}
        for source, stats in self._stats.items():
            for route in stats.kv_routes:
                target = names.get(route.peer)
                if target is not None:
                    routes.setdefault((source, target), []).append(_route(route))
        found = []
        for pair in sorted(paths.known.keys() | routes.keys()):
            path = paths.known.get(pair, _UNUSED)
            found.append(
                PathStatus(
                    source=pair[0],
                    target=pair[1],
                    prompts=path.prompts,
                    size_bytes=path.size_bytes,
                    lost=path.lost,
                    last_s=path.last_s,
                    age_s=None if path.used_s is None else now_s - path.used_s,
                    routes=routes.get(pair, []),
                )
            )
        return found

    def _decisions(self, now_s: float) -> list[DecisionStatus]:
        found = []
        for entry in self._dispatcher.chooser.log.describe(now_s, candidates=False):
            first_s = self._figures.first_token_s(entry["request"])
            taken_s = None if first_s is None else first_s - (now_s - entry["age_s"])
            found.append(
                DecisionStatus(
                    measured_ttft_s=None if taken_s is None or taken_s < 0 else taken_s,
                    **{field: entry[field] for field in _DECISION_FIELDS},
                )
            )
            if len(found) == _SHOWN_DECISIONS:
                break
        return found

    def _index(self) -> IndexStatus:
        index = self._dispatcher.chooser.index
        slots = [one.slot for one in self._dispatcher.instances if one.slot is not None]
        return IndexStatus(
            different_blocks=len(index),
            blocks=sum(index.num_blocks(slot) for slot in slots),
            expected_blocks=index.num_expected,
            memory_bytes=index.memory_bytes(),
        )


def _route(route: KvRoute) -> RouteStatus:
    return RouteStatus(
        transport=route.transport,
        state=route.state,
        reason=route.reason,
        size_bytes=route.size_bytes,
        retries=route.retries,
        bandwidth_gbs=route.bandwidth_gbs,
    )


_UNUSED = KvPath()
_LOAD_FIELDS = (
    "waiting",
    "running",
    "receiving",
    "prefill_tokens",
    "context_tokens",
    "pages_total",
    "pages_free",
    "pages_cached",
)
_DECISION_FIELDS = tuple(
    field for field in DecisionStatus.__struct_fields__ if field != "measured_ttft_s"
)
