"""How a store of this process joins Inlay's: names, ports, protocols, and the disk."""

import errno
import random
import shutil
import socket
from dataclasses import dataclass

from inlay.connect.mooncake.config import client_ports, transports
from inlay.connect.mooncake.names import plain_name
from inlay.core.errors import AddressInUseError, ConfigError, StoreUnavailable
from inlay.store import Contribution, Disk, Store

# What Inlay moves bytes by is chosen for each pair of memories, whatever of these is named.
PROTOCOLS = ("tcp", "rdma", "efa", "nvlink", "nvlink_intra", "cxl", "hip", "ascend", "barex", "ub")
PORT_TRIES = 64


@dataclass(frozen=True, kw_only=True)
class Membership:
    """A checked `setup`.

    Attributes:
        hostname: how others reach this process, without a port.
        port: None: any of the range of stores.
        master: as `Store.connect` takes it.
        memory_bytes: contributed; 0: nothing.
        disk: behind the memory.
    """

    hostname: str
    port: int | None
    master: str
    memory_bytes: int
    disk: Disk | None

    def join(self, join_s: float, call_s: float) -> tuple[Store, str]:
        """The store, and its name as a segment, `hostname:port`.

        Args:
            join_s: how long to wait for a master that answers.
            call_s: the time limit of the store's calls.

        Raises what `Store.connect` raises.
        """
        host = listening_host(self.hostname)
        for port in self._ports():
            name = f"{self.hostname}:{port}"
            contribution = None
            if self.memory_bytes:
                contribution = Contribution(
                    memory=self.memory_bytes, name=plain_name(name), disk=self.disk
                )
            try:
                store = Store.connect(
                    self.master,
                    contribute=contribution,
                    listen=f"{host}:{port}",
                    transports=transports(),
                    timeout_s=join_s,
                )
            except AddressInUseError:
                continue
            store.timeout_s = call_s
            return store, name
        raise StoreUnavailable(
            f"of {PORT_TRIES} ports that were tried for {self.hostname}, all are taken: give "
            "another range with MC_STORE_CLIENT_MIN_PORT and MC_STORE_CLIENT_MAX_PORT"
        )

    def _ports(self) -> list[int]:
        if self.port is not None:
            return [self.port]
        low, high = client_ports()
        # Any order will do; two processes that begin together should not try the same ones.
        return random.SystemRandom().sample(range(low, high), min(PORT_TRIES, high - low))


def membership(
    local_hostname: str,
    metadata_server: str,
    global_segment_size: int,
    protocol: str,
    master_server_addr: str,
    ssd_offload_path: str,
    tenant_id: str,
) -> Membership:
    """Check what `setup` was given.

    Raises:
        ConfigError: a protocol, tenant or address that cannot be; the message has the value.
    """
    check_protocol(protocol)
    check_metadata_server(metadata_server)
    if tenant_id not in ("", "default"):
        raise ConfigError(
            f"tenant_id is {tenant_id!r}: which tenant a process is follows from its token here "
            "(inlay store master --tenants); leave it 'default'"
        )
    if global_segment_size < 0:
        raise ConfigError(f"global_segment_size must be at least 0, got {global_segment_size}")
    hostname, _, port = local_hostname.rpartition(":")
    if not hostname or not port.isdigit():
        hostname, port = local_hostname, ""
    if not hostname:
        raise ConfigError("local_hostname is empty: give the name by which others reach this host")
    return Membership(
        hostname=hostname,
        port=int(port) if port else None,
        master=master_server_addr.replace(";", ","),
        memory_bytes=global_segment_size,
        disk=_disk(ssd_offload_path) if ssd_offload_path and global_segment_size else None,
    )


def check_protocol(protocol: str) -> None:
    """Raise `ConfigError` for a protocol that nobody knows."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol is {protocol!r}: it must be one of {', '.join(PROTOCOLS)}")


def check_metadata_server(url: str) -> str | None:
    """The directory of engines that is meant, or None where engines find each other by address.

    Raises:
        ConfigError: a form that nobody knows.
    """
    if url == "P2PHANDSHAKE":
        return None
    scheme, found, rest = url.partition("://")
    if not found:
        scheme, rest = "etcd", url
    if scheme not in ("etcd", "redis", "http") or not rest:
        raise ConfigError(
            f"metadata_server is {url!r}: write P2PHANDSHAKE, http://HOST:PORT/metadata, "
            "etcd://HOST:2379 or redis://HOST:6379"
        )
    return f"{scheme}://{rest}"


def listening_host(hostname: str) -> str:
    """The address of this machine at which others find `hostname`.

    Raises:
        ConfigError: it cannot be resolved, or is another machine's.
    """
    host = hostname.strip("[]")
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"local_hostname {hostname!r} cannot be resolved: {error}") from None
    addresses = sorted({(family, str(place[0])) for family, _, _, _, place in found})  # IPv4 first
    for family, address in addresses:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, 0))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                continue
        return f"[{address}]" if family == socket.AF_INET6 else address
    raise ConfigError(
        f"local_hostname {hostname!r} is {', '.join(address for _, address in addresses)}, which "
        "is no address of this machine"
    )


def _disk(path: str) -> Disk:
    """Room on the disk: nine tenths of what its file system has now."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise ConfigError(f"ssd_offload_path {path}: {error.strerror}") from None
    return Disk(path, free * 9 // 10)
