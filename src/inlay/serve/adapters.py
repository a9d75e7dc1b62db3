"""Adapters over HTTP, in vLLM's form and in SGLang's.

They are loaded by `POST /v1/load_lora_adapter` or `/load_lora_adapter` and forgotten by
`/v1/unload_lora_adapter` or `/unload_lora_adapter`; the second ones answer as SGLang does. The path
is one of the engine's machine. Requests choose an adapter by naming it as their model, those to
`/generate` by `lora_path`.
"""

from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inlay.core.errors import ModelError, ModelNotFoundError, RequestError
from inlay.serve.openai.errors import json_response
from inlay.serve.openai.http import read_body
from inlay.serve.openai.protocol import decode_body
from inlay.serve.service import Service


class LoadBody(msgspec.Struct, kw_only=True):
    """What a route that loads takes."""

    lora_name: str
    lora_path: str


class UnloadBody(msgspec.Struct, kw_only=True):
    """What a route that unloads takes."""

    lora_name: str


class AdapterFilesError(RequestError):
    """The directory holds no adapter that can be served here."""

    code = "invalid_adapter"


class AdapterFilesMissingError(AdapterFilesError):
    """The directory holds no adapter."""

    code = "adapter_files_missing"
    http_status = 404


_load = msgspec.json.Decoder(LoadBody)
_unload = msgspec.json.Decoder(UnloadBody)
Body = TypeVar("Body", LoadBody, UnloadBody)


class AdapterRoutes:
    """See the module."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def load(self, request: Request) -> Response:
        """Answers when requests can name the adapter; others go on meanwhile."""
        body = await self._body(request, _load)
        await self._load(body)
        return json_response({"message": f"adapter {body.lora_name!r} is loaded", "success": True})

    async def unload(self, request: Request) -> Response:
        """Refused while requests use the adapter."""
        body = await self._body(request, _unload)
        await self._service.unload_adapter(body.lora_name)
        return json_response(
            {"message": f"adapter {body.lora_name!r} is unloaded", "success": True}
        )

    async def sglang_load(self, request: Request) -> Response:
        """As `load`, in SGLang's form."""
        return await self._in_sglang_s_form(self._load(await self._body(request, _load)))

    async def sglang_unload(self, request: Request) -> Response:
        """As `unload`, in SGLang's form."""
        body = await self._body(request, _unload)
        return await self._in_sglang_s_form(self._service.unload_adapter(body.lora_name))

    async def _in_sglang_s_form(self, work: Coroutine[Any, Any, None]) -> Response:
        failure: str | None = None
        try:
            await work
        except RequestError as error:
            failure = str(error)
        answer = {
            "success": failure is None,
            "error_message": failure,
            "loaded_adapters": self._service.adapters,
        }
        return json_response(answer, status=200 if failure is None else 400)

    async def _load(self, body: LoadBody) -> None:
        try:
            await self._service.load_adapter(body.lora_name, body.lora_path)
        except ModelError as error:
            missing = isinstance(error, ModelNotFoundError)
            kind = AdapterFilesMissingError if missing else AdapterFilesError
            raise kind(str(error), "lora_path") from error

    async def _body(self, request: Request, decoder: msgspec.json.Decoder[Body]) -> Body:
        return decode_body(await read_body(request, self._service.config.max_body_bytes), decoder)
