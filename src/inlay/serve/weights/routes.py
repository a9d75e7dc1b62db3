"""`/v1/weights`, `/v1/weights/update`, `/v1/rollouts/pause` and `/v1/rollouts/resume`."""

from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from inlay.core.errors import RequestError
from inlay.core.failures import restore
from inlay.core.messages import InFlight, InstanceWeights, ResumeKv, Rollout, RolloutHandle
from inlay.serve.openai.errors import describe, json_response
from inlay.serve.openai.http import read_body
from inlay.serve.openai.protocol import decode_body
from inlay.serve.service import Service
from inlay.serve.weights.updates import Updates


class UpdateBody(msgspec.Struct, kw_only=True):
    """Where new weights come from: `publishers`, or a `directory` of this host."""

    publishers: list[str] | None = None
    name: str = "model"
    directory: str | None = None
    version: str | None = None
    in_flight: InFlight = "finish"


class PauseBody(msgspec.Struct, kw_only=True):
    """Which generations: ids as answers have them; null: all."""

    request_ids: list[str] | None = None


class ResumeBody(msgspec.Struct, kw_only=True):
    """Which paused generations, by their handles; null: all."""

    handles: list[str] | None = None
    kv: ResumeKv = "keep"


_update = msgspec.json.Decoder(UpdateBody)
_pause = msgspec.json.Decoder(PauseBody)
_resume = msgspec.json.Decoder(ResumeBody)


class WeightRoutes:
    """See the module."""

    def __init__(self, service: Service, updates: Updates) -> None:
        self._service = service
        self._updates = updates
        self._engine = updates.engine

    async def show(self, request: Request) -> Response:
        """Which version computes new requests; empty: the weights that were loaded first."""
        stats = await self._engine.stats()
        return json_response({"object": "weights", "version": stats.weight_version})

    async def update(self, request: Request) -> Response:
        """Answer when new requests are computed by the new weights."""
        body = decode_body(await self._body(request), _update)
        taken: dict[str, int] = {}
        if body.publishers and body.directory is None:
            swapped, taken = await self._updates.from_publishers(
                body.publishers, body.name, body.version, body.in_flight
            )
        elif body.directory is not None and not body.publishers and body.version:
            swapped = await self._updates.from_directory(
                Path(body.directory), body.version, body.in_flight
            )
        else:
            raise RequestError(
                "say where the weights come from: publishers, a list of HOST:PORT, or directory "
                "and version"
            )
        answer: dict[str, object] = {
            "object": "weights",
            "version": swapped.version,
            "load_s": swapped.seconds,
            "made_bytes": swapped.made_bytes,
            "taken_bytes": taken,
        }
        if swapped.instances:
            answer["instances"] = [_shown_instance(one) for one in swapped.instances]
        if swapped.error is None:
            return json_response(answer)
        status, failure, headers = describe(restore(swapped.error_code or "", swapped.error))
        return json_response(answer | failure, status=status, headers=headers)

    async def pause(self, request: Request) -> Response:
        """Stop generations between two steps; their streams stay open."""
        body = decode_body(await self._body(request), _pause)
        rollouts = await self._engine.pause_rollouts(body.request_ids)
        return json_response({"object": "list", "data": [_shown(one) for one in rollouts]})

    async def resume(self, request: Request) -> Response:
        """Let them go on."""
        body = decode_body(await self._body(request), _resume)
        handles = None if body.handles is None else [_handle(one) for one in body.handles]
        resumed = await self._engine.resume_rollouts(handles, body.kv)
        return json_response({"object": "list", "data": resumed})

    async def _body(self, request: Request) -> bytes:
        return await read_body(request, self._service.config.max_body_bytes) or b"{}"


def _handle(text: str) -> RolloutHandle:
    request_id, at, version = text.rpartition("@")
    if not at:
        raise RequestError(
            f"{text[:80]!r} is no handle: give the `kv_handle` that the pause answered", "handles"
        )
    return RolloutHandle(request_id, version)


def _shown_instance(one: InstanceWeights) -> dict[str, object]:
    """What an instance has after an update."""
    shown: dict[str, object] = {
        "name": one.name,
        "version": one.version,
        "load_s": one.seconds,
        "made_bytes": one.made_bytes,
    }
    if one.error is not None:
        shown |= {"error": one.error, "code": one.error_code}
    return shown


def _shown(rollout: Rollout) -> dict[str, object]:
    """A paused generation; its handle says which KV it has."""
    return {
        "id": rollout.request_id,
        "object": "rollout",
        "prompt_tokens": rollout.prompt_tokens,
        "choices": [
            {
                "index": choice.index,
                "token_ids": list(choice.token_ids),
                "blocks_on_device": choice.blocks,
            }
            for choice in rollout.choices
        ],
        "weight_version": rollout.version,
        "kv_handle": str(rollout.handle),
    }
