"""`/v1/models`."""

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from inlay.serve.openai.errors import json_response
from inlay.serve.service import Service


class ModelsRoute:
    """Lists the names under which the model is served, and the adapters."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._created = int(time.time())

    async def handle(self, request: Request) -> Response:
        """All names, or the one in the path."""
        name = request.path_params.get("name")
        if name is None:
            return json_response({"object": "list", "data": list(map(self._card, self._names()))})
        return json_response(self._card(self._service.check_model(name)))

    def _names(self) -> tuple[str, ...]:
        return (*self._service.names, *self._service.adapters)

    def _card(self, name: str) -> dict[str, Any]:
        service = self._service
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "inlay",
            "root": service.adapters.get(name, service.info.model),
            "parent": service.name if name in service.adapters else None,
            "max_model_len": service.info.max_context_tokens,
        }
