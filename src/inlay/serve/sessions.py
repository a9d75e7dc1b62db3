"""Hints about sessions: `POST /v1/sessions/{session_id}/pause` and `/resume`.

An agent says that a tool call begins, and that it ends; the KV of the session makes room meanwhile
and is back for the next turn. Requests say with `session_id` whose turn they are.
"""

from starlette.requests import Request
from starlette.responses import Response

from inlay.core.errors import RequestError
from inlay.serve.openai.errors import json_response
from inlay.serve.service import Service


class SessionUnknownError(RequestError):
    """No turn of the session has ended here."""

    code = "session_not_found"
    http_status = 404


class SessionRoutes:
    """See the module."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def pause(self, request: Request) -> Response:
        """The session waits for something else."""
        return await self._hint(request, paused=True)

    async def resume(self, request: Request) -> Response:
        """The session's next turn is near."""
        return await self._hint(request, paused=False)

    async def _hint(self, request: Request, *, paused: bool) -> Response:
        session = request.path_params["session_id"]
        blocks = await self._service.client.hint_session(session, paused=paused)
        if not blocks.num_blocks:
            raise SessionUnknownError(
                f"no turn of session {session!r} has ended here: send requests with session_id, "
                "and hints after them",
                "session_id",
            )
        return json_response(
            {
                "id": session,
                "object": "session",
                "state": "paused" if paused else "active",
                "blocks": blocks.num_blocks,
                "blocks_on_device": blocks.on_device,
            }
        )
