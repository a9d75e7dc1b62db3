"""Entries in etcd.

Each entry hangs on a lease of its engine: etcd removes it `LEASE_S` after the engine was last heard
of.
"""

from inlay.core.etcd import Etcd, encode
from inlay.transfer.directory.base import ASK_S, LEASE_S, Directory, Entry


class EtcdDirectory(Directory):
    """See `Directory`."""

    def __init__(self, host: str, port: int) -> None:
        self._etcd = Etcd([(host, port)])
        self.url = self._etcd.url
        self.server = host, port
        self._lease: str | None = None

    def publish(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """See `Directory`."""
        ask = self._etcd.ask
        lease = ask("lease/grant", {"TTL": LEASE_S}, timeout_s=timeout_s).get("ID")
        put = {"key": encode(_key(name)), "value": encode(entry.to_bytes()), "lease": lease}
        ask("kv/put", put, timeout_s=timeout_s)
        self._lease = lease

    def renew(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> bool:
        """See `Directory`."""
        answer = self._etcd.ask("lease/keepalive", {"ID": self._lease}, timeout_s=timeout_s)
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
            self._etcd.ask("lease/revoke", {"ID": self._lease}, timeout_s=timeout_s)
            self._lease = None

    def look_up(self, name: str, *, timeout_s: float = ASK_S) -> Entry | None:
        """See `Directory`."""
        found = self._etcd.get(_key(name), timeout_s=timeout_s)
        return None if found is None else Entry.from_bytes(found.value, f"{name} in {self.url}")


def _key(name: str) -> str:
    return f"/inlay/engines/{name}"
