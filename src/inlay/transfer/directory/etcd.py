"""Entries in etcd, through the JSON form of its version 3 interface (etcd 3.4 and later).

Each entry hangs on a lease of its engine: etcd removes it `LEASE_S` after the engine was last heard
of.
"""

import base64
import http.client
import json
from typing import Any

from inlay.core.errors import EndpointError
from inlay.transfer.directory.base import ASK_S, LEASE_S, Directory, Entry
from inlay.transfer.directory.http import ask_http


class EtcdDirectory(Directory):
    """See `Directory`."""

    def __init__(self, host: str, port: int) -> None:
        self.url = f"etcd://{host}:{port}"
        self.server = host, port
        self._lease: str | None = None

    def publish(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """See `Directory`."""
        lease = self._ask("lease/grant", {"TTL": LEASE_S}, timeout_s).get("ID")
        value = base64.b64encode(entry.to_bytes()).decode()
        self._ask("kv/put", {"key": _key(name), "value": value, "lease": lease}, timeout_s)
        self._lease = lease

    def renew(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> bool:
        """See `Directory`."""
        answer = self._ask("lease/keepalive", {"ID": self._lease}, timeout_s)
        lives = int(answer.get("result", {}).get("TTL", 0)) > 0
        held = self.look_up(name, timeout_s=timeout_s)
        if held is not None and held.id != entry.id:
            return False
        if held is None or not lives:
            self.publish(name, entry, timeout_s=timeout_s)
        return True

    def withdraw(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """See `Directory`: what another engine has put hangs on another lease."""
        if self._lease is not None:
            self._ask("lease/revoke", {"ID": self._lease}, timeout_s)
            self._lease = None

    def look_up(self, name: str, *, timeout_s: float = ASK_S) -> Entry | None:
        """See `Directory`."""
        found = self._ask("kv/range", {"key": _key(name)}, timeout_s).get("kvs", [])
        if not found:
            return None
        return Entry.from_bytes(base64.b64decode(found[0]["value"]), f"{name} in {self.url}")

    def _ask(self, call: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            status, answer = ask_http(
                *self.server, "POST", f"/v3/{call}", json.dumps(body).encode(), timeout_s
            )
            found = json.loads(answer)
            if not isinstance(found, dict):
                raise ValueError(f"{answer[:60]!r} is no object")
        except (OSError, http.client.HTTPException) as error:
            raise self.unreachable(error) from error
        except ValueError as error:
            raise EndpointError(f"{self.url} answers {call} as no etcd does: {error}") from None
        if status != 200:
            what = found.get("error") or found.get("message") or repr(answer[:200])
            raise EndpointError(f"{self.url} answers {call} with {status}: {what}", status)
        return found


def _key(name: str) -> str:
    return base64.b64encode(f"/inlay/engines/{name}".encode()).decode()
