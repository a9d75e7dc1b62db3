"""Routes of a dispatcher for those who run it: how its instances are, and why it chose them."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from inlay.cluster.decision_log import KEPT
from inlay.cluster.dispatcher import Dispatcher
from inlay.cluster.dispatcher_status import DispatcherStatus
from inlay.core.clock import Clock
from inlay.core.errors import RequestError
from inlay.serve.openai.errors import json_response
from inlay.serve.service import Service

_NOT_TERMS = ("instance", "chosen")


class ClusterRoutes:
    """See the module."""

    def __init__(self, dispatcher: Dispatcher, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._clock = clock

    def status_of(self, service: Service) -> DispatcherStatus:
        """Takes the picture of the dispatcher and of what `service` counts in front of it."""
        return DispatcherStatus(self._dispatcher, service.figures, self._clock, model=service.name)

    async def health(self, request: Request) -> Response:
        """200 while an instance takes requests, else 503; with the state of each instance."""
        alive = self._dispatcher.alive
        progress = self._dispatcher.load_progress
        body = {
            "status": "ok" if alive else "no instance takes requests",
            "weights": {
                "loaded_bytes": progress.loaded_bytes,
                "total_bytes": progress.total_bytes,
            },
            "instances": [self._instance(name) for name in self._dispatcher.instances.names],
        }
        headers = {} if alive else {"Retry-After": "5"}
        return json_response(body, status=200 if alive else 503, headers=headers)

    async def weights(self, request: Request) -> Response:
        """Which version computes new requests, and which each instance has."""
        instances = self._dispatcher.instances
        there = [one for one in instances if one.info is not None]
        body = {
            "object": "weights",
            "version": instances.weights.version,
            "instances": [
                {"name": one.name, "state": one.state, "version": one.info.weights.version}
                for one in sorted(there, key=lambda one: one.name)
                if one.info is not None
            ],
        }
        return json_response(body)

    async def decisions(self, request: Request) -> Response:
        """The latest decisions with what was compared: `?limit=20&request=ID&format=text`."""
        query = request.query_params
        limit = query.get("limit", "20")
        if not limit.isdigit() or not 1 <= int(limit) <= KEPT:
            raise RequestError(f"limit is {limit}: it must be in 1..{KEPT}", "limit")
        wanted = query.get("request", "")
        log = self._dispatcher.chooser.log
        found = [
            entry
            for entry in log.describe(self._clock.now())
            if not wanted or wanted in entry["request"]
        ][: int(limit)]
        if query.get("format", "json") == "text":
            return PlainTextResponse("\n\n".join(_text(entry) for entry in found) + "\n")
        return json_response({"decisions": found})

    def _instance(self, name: str) -> dict[str, Any]:
        instances = self._dispatcher.instances
        instance = instances.find(name)
        described: dict[str, Any] = {"name": name, "state": instances.state(name)}
        if instance is not None and instance.info is not None:
            described["role"] = instance.info.role
            described["run_id"] = instance.info.run_id
            described["weight_version"] = instance.info.weights.version
            described["requests"] = len(instance.attempts)
            if instance.report is not None:
                load = msgspec.to_builtins(instance.report)
                fields = instance.report.__struct_fields__
                described["load"] = {
                    field: value
                    for field, value in zip(fields, load[-len(fields) :], strict=True)
                    if field not in ("run_id", "samples")
                }
        return described


def _text(entry: dict[str, Any]) -> str:
    """A decision as lines for a terminal."""
    if entry["refusal"] is not None:
        where = f"refused: {entry['refusal']} (come back in {entry['retry_after_s']:.1f} s)"
    elif entry["prefill"] == entry["decode"]:
        where = f"{entry['decode']}"
    else:
        where = f"{entry['prefill']} -> {entry['decode']}"
    lines = [
        f"{entry['request']}  {entry['age_s']:.1f} s ago  {entry['policy']}: {where}",
        f"  {entry['num_tokens']} tokens, {entry['reused_blocks']} blocks reused, expected "
        f"ttft {1e3 * entry['ttft_s']:.1f} ms (queue {1e3 * entry['wait_s']:.1f}, computing "
        f"{1e3 * entry['work_s']:.1f}), tbt {1e3 * entry['tbt_s']:.2f} ms",
    ]
    candidates = entry["candidates"]
    if candidates:
        terms = [name for name in candidates[0] if name not in _NOT_TERMS]
        lines.append("  " + "".join(f"{title:>14}" for title in ("instance", *terms)))
        for row in candidates:
            mark = "*" if row["chosen"] else " "
            numbers = "".join(f"{_shown(row[term]):>14}" for term in terms)
            lines.append(f"{mark} {row['instance']:>14}{numbers}")
    return "\n".join(lines)


def _shown(term: float | None) -> str:
    return "-" if term is None else f"{term:.6g}"
