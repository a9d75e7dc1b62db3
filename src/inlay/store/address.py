"""Where masters are: as a user writes it, and as it is asked of etcd."""

import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.errors import ConfigError, StoreUnavailable
from inlay.core.etcd import DEFAULT_PORT as ETCD_PORT
from inlay.core.etcd import Etcd

DEFAULT_PORT = 50051
DEFAULT_CLUSTER = "inlay"
FORMS = "HOST:PORT, a list HOST:PORT,HOST:PORT, or etcd://HOST:2379[,HOST:2379]/CLUSTER"

_CLUSTER = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A store whose masters are elected through etcd.

    Attributes:
        members: of etcd, host and port of each.
        name: of the store; several may share one etcd.
    """

    members: tuple[tuple[str, int], ...]
    name: str

    def etcd(self) -> Etcd:
        """A client. Nothing is asked yet."""
        return Etcd(self.members)

    def __str__(self) -> str:
        return f"{self.etcd().url}/{self.name}"


def parse_cluster(url: str) -> Cluster:
    """Read `etcd://host:2379,host:2379/cluster`.

    Raises:
        ConfigError: it has another form.
    """
    scheme, found, rest = url.partition("://")
    hosts, _, path = rest.partition("/")
    name = path.strip("/") or DEFAULT_CLUSTER
    if scheme != "etcd" or not found or not hosts:
        raise ConfigError(f"{url!r} names no etcd: write etcd://HOST:2379[,HOST:2379]/CLUSTER")
    if _CLUSTER.fullmatch(name) is None:
        raise ConfigError(
            f"a cluster's name has 1 to 64 letters, digits, dots, dashes or underscores, got "
            f"{name!r} in {url!r}"
        )
    members = tuple(_host_and_port(part, ETCD_PORT, url) for part in hosts.split(","))
    return Cluster(members=members, name=name)


def parse_masters(text: str) -> "Cluster | tuple[tuple[str, int], ...]":
    """Read where masters are: a cluster, or the host and port of each.

    Raises:
        ConfigError: it has none of the forms.
    """
    if "://" in text:
        return parse_cluster(text)
    return tuple(_host_and_port(part, DEFAULT_PORT, text) for part in text.split(","))


def join_address(host: str, port: int) -> str:
    """`host:port`, or `[v6]:port`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def numeric_addresses(masters: Sequence[tuple[str, int]]) -> list[str]:
    """The addresses of hosts, with their ports, in the order in which they are to be tried.

    Raises:
        StoreUnavailable: the name of one is not known.

    Cost: asks the system's resolver, which may ask a name server.
    """
    addresses: dict[str, None] = {}
    for host, port in masters:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter of a label that is too long
            raise StoreUnavailable(f"{host!r} names no host ({error})") from None
        addresses |= dict.fromkeys(join_address(str(place[0]), port) for *_, place in found)
    return list(addresses)


def _host_and_port(part: str, default: int, whole: str) -> tuple[str, int]:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@]+)(?::(\d{1,5}))?", part.strip())
    port = int(match[2] or default) if match else -1
    if match is None or not 0 <= port <= 65535:
        raise ConfigError(f"{part!r} in {whole!r} is no address of a master: write {FORMS}")
    return match[1].strip("[]"), port
