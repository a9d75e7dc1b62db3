"""The status of a cluster as JSON, for programs; the dashboard shows the same."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inlay.serve.dashboard.source import StatusSource


class StatusRoute:
    """See the module."""

    def __init__(self, source: StatusSource) -> None:
        self._source = source

    async def handle(self, request: Request) -> Response:
        """`cluster.status.ClusterStatus`, at most half a second old."""
        body = msgspec.json.encode(await self._source.take())
        return Response(body, media_type="application/json")
