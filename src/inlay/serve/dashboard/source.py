"""Where the dashboard's numbers come from: a dispatcher, or the one engine behind a server."""

import asyncio
import time
from typing import Any, Protocol

from inlay.cluster import picture
from inlay.cluster.loads import Loads
from inlay.cluster.status import ClusterStatus, InstanceStatus
from inlay.core.errors import EngineError
from inlay.core.instance_messages import LoadReport
from inlay.core.messages import EngineStats
from inlay.serve.service import Service

_ANSWER_S = 2.0
_FRESH_S = 0.5
_NAME = "engine"


class StatusSource(Protocol):
    """Takes the picture when somebody asks."""

    async def take(self) -> ClusterStatus:
        """The status now."""
        ...

    def decision(self, request_id: str) -> dict[str, Any] | None:
        """The latest decision on a request, with its candidates; None if there is none."""
        ...


class EngineStatus:
    """One engine as a cluster of one: nothing is chosen, nothing moves.

    Its load is known from when somebody asks, so its history has gaps where nobody did.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._loads = Loads()
        self._taken: tuple[float, ClusterStatus] | None = None

    async def take(self) -> ClusterStatus:
        """See `StatusSource`."""
        now_s = self._service.clock.now()
        if self._taken is None or now_s - self._taken[0] >= _FRESH_S:
            self._taken = now_s, await self._status()
        return self._taken[1]

    def decision(self, request_id: str) -> dict[str, Any] | None:
        """None: there is nothing to choose from."""
        return None

    async def _status(self) -> ClusterStatus:
        stats = await self._ask()
        service, figures = self._service, self._service.figures
        now_s = service.clock.now()
        return ClusterStatus(
            taken_s=time.time(),
            server="engine",
            model=service.name,
            policy="",
            window_s=picture.WINDOW_S,
            page_tokens=service.info.page_tokens,
            instances=[self._instance(stats, now_s)],
            traffic=picture.traffic(figures, now_s),
            classes=picture.classes(figures, now_s),
            history=picture.history(figures.tally, now_s),
            paths=[],
            decisions=[],
            index=None,
        )

    async def _ask(self) -> EngineStats | None:
        try:
            return await asyncio.wait_for(self._service.client.stats(), _ANSWER_S)
        except (EngineError, TimeoutError):
            return None

    def _instance(self, stats: EngineStats | None, now_s: float) -> InstanceStatus:
        info, alive = self._service.info, self._service.is_healthy
        fields: dict[str, Any] = {}
        if stats is not None:
            self._loads.saw(_NAME, _report(stats), now_s)
            fields = {
                "waiting": stats.waiting,
                "running": stats.running,
                "pages_total": stats.pages_total,
                "pages_free": stats.pages_free,
                "pages_cached": stats.pages_cached,
                **picture.totals(stats),
                "weight_version": stats.weight_version,
            }
        return InstanceStatus(
            name=_NAME,
            role="both",
            state="gone" if not alive else "ready" if stats is not None else "does not answer",
            model=info.model,
            device=info.placement or info.device,
            requests=self._service.active,
            max_running=self._service.config.engine.scheduler.max_running,
            page_bytes=info.page_bytes,
            busy=self._loads.busy(_NAME, now_s),
            **fields,
        )


def _report(stats: EngineStats) -> LoadReport:
    return LoadReport(
        run_id="",
        waiting=stats.waiting,
        running=stats.running,
        receiving=0,
        prefill_tokens=0,
        context_tokens=0,
        pages_total=stats.pages_total,
        pages_free=stats.pages_free,
        pages_cached=stats.pages_cached,
    )
