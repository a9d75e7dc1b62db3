"""Routes for those who run the server: health, version, metrics, and clearing the cache."""

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from inlay import __version__
from inlay.core.errors import EngineDiedError, EngineError
from inlay.core.messages import EngineStats
from inlay.serve.openai.errors import json_response
from inlay.serve.service import Service

_STATS_TIMEOUT_S = 5.0


class AdminRoutes:
    """Everything that is not about generating."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def health(self, request: Request) -> Response:
        """200 while requests can be served, with how much of the weights is in memory; else 503."""
        if not self._service.is_healthy:
            raise EngineDiedError("the engine's process ended: restart the server")
        progress = self._service.client.load_progress
        weights = {"loaded_bytes": progress.loaded_bytes, "total_bytes": progress.total_bytes}
        return json_response({"status": "ok", "weights": weights})

    async def version(self, request: Request) -> Response:
        """The version of Inlay."""
        return json_response({"version": __version__})

    async def metrics(self, request: Request) -> Response:
        """All metrics in the Prometheus text form."""
        return Response(
            self._service.metrics.render(await self._stats(), self._service.client.load_progress),
            media_type="text/plain; version=0.0.4",
        )

    async def reset_cache(self, request: Request) -> Response:
        """Forget all cached blocks that no request uses."""
        await self._service.client.reset_prefix_cache()
        return json_response({"message": "the prefix cache is empty", "success": True})

    async def _stats(self) -> EngineStats | None:
        if not self._service.is_healthy:
            return None
        try:
            return await asyncio.wait_for(self._service.client.stats(), _STATS_TIMEOUT_S)
        except (EngineError, TimeoutError):
            return None
