"""etcd through the JSON form of its version 3 interface (etcd 3.4 and later)."""

import base64
import http.client
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inlay.core.errors import EndpointError
from inlay.core.http import ask_http

DEFAULT_PORT = 2379


@dataclass(frozen=True, kw_only=True)
class EtcdValue:
    """What a key holds.

    Attributes:
        revision: of etcd when it was put: each put of the key gives it a greater one.
    """

    value: bytes
    revision: int


class Etcd:
    """A client of one cluster. May be used by several threads.

    A question goes to the member that answered last; to the others in turn while that one does not
    answer. A connection per question: who uses this asks a few times in a second.

    Args:
        members: host and port of each, one at least.

    All methods raise `EndpointError` when no member answers within `timeout_s` of network time
    (resolving names comes on top), or with an error, or as no etcd does.
    """

    def __init__(self, members: Sequence[tuple[str, int]]) -> None:
        self._members = list(members)
        self._now = 0
        self.url = "etcd://" + ",".join(f"{host}:{port}" for host, port in members)

    def get(self, key: str, *, timeout_s: float) -> EtcdValue | None:
        """What the cluster agreed on last."""
        return _value(self.ask("kv/range", {"key": encode(key)}, timeout_s=timeout_s))

    def put_if(
        self, key: str, value: bytes, *, revision: int, timeout_s: float
    ) -> tuple[bool, EtcdValue | None]:
        """Put, if the key was last put at `revision` (0: it is not there).

        Without an answer it may have been put or not.

        Returns:
            Whether it was put, and what the key holds now.
        """
        read = {"requestRange": {"key": encode(key)}}
        body = {
            "compare": [
                {"key": encode(key), "target": "MOD", "result": "EQUAL", "modRevision": revision}
            ],
            "success": [
                {"requestPut": {"key": encode(key), "value": encode(value)}},
                read,
            ],
            "failure": [read],
        }
        answer = self.ask("kv/txn", body, timeout_s=timeout_s)
        done = answer.get("succeeded", False) is True
        try:
            responses = answer["responses"]
            return done, _value(responses[-1]["response_range"])
        except (KeyError, IndexError, TypeError):
            raise EndpointError(f"{self.url} answers kv/txn as no etcd does: {answer}") from None

    def ask(self, call: str, body: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Any call, as `kv/range`; keys and values as `encode` gives them."""
        end = time.monotonic() + timeout_s
        error: EndpointError | None = None
        for turn in range(len(self._members)):
            member = (self._now + turn) % len(self._members)
            # A member that is silent leaves time for the others.
            left = (end - time.monotonic()) / (len(self._members) - turn)
            if left <= 0:
                break
            try:
                found = self._ask(self._members[member], call, body, left)
            except EndpointError as problem:
                error = problem
                continue
            self._now = member
            return found
        raise error or EndpointError(f"{self.url} does not answer: no time was left")

    def _ask(
        self, member: tuple[str, int], call: str, body: dict[str, Any], timeout_s: float
    ) -> dict[str, Any]:
        url = f"etcd://{member[0]}:{member[1]}"
        try:
            status, answer = ask_http(
                *member, "POST", f"/v3/{call}", json.dumps(body).encode(), timeout_s
            )
            found = json.loads(answer)
            if not isinstance(found, dict):
                raise ValueError(f"{answer[:60]!r} is no object")
        except (OSError, http.client.HTTPException) as error:
            what = str(error) or type(error).__name__
            raise EndpointError(f"{url} does not answer: {what}") from error
        except ValueError as error:
            raise EndpointError(f"{url} answers {call} as no etcd does: {error}") from None
        if status != 200:
            what = found.get("error") or found.get("message") or repr(answer[:200])
            raise EndpointError(f"{url} answers {call} with {status}: {what}", status)
        return found


def encode(data: str | bytes) -> str:
    """A key or value as etcd's JSON has it."""
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def _value(answer: dict[str, Any]) -> EtcdValue | None:
    found = answer.get("kvs", [])
    if not found:
        return None
    value = base64.b64decode(found[0].get("value", ""))
    return EtcdValue(value=value, revision=int(found[0]["mod_revision"]))
