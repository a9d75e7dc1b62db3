"""How an instance is started: what its launcher tells it, and what it answers.

The launcher runs `python -m inlay.serve.instance`, writes one line of JSON to its standard input,
and keeps that open for as long as the instance is to live. The instance writes an `InstanceLine`
to its standard output for each thing that the launcher waits for; its log goes to standard error.
"""

import ipaddress
import re

import msgspec

from inlay.core.errors import ConfigError
from inlay.core.instance_messages import Role

MODULE = "inlay.serve.instance"

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@]+):(\d{1,5})")
_ANY_HOST = ("0.0.0.0", "::")
_PRIVATE = "ipc://"


class InstanceSetup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an instance is in its deployment.

    Attributes:
        name: unique in the deployment.
        listen: "host:port" for dispatchers, where port 0 takes any that is free; or
            "ipc://DIRECTORY", for those who may enter it.
        host: what others connect to; empty: the host of `listen`.
    """

    name: str
    role: Role = "both"
    listen: str = "127.0.0.1:0"
    host: str = ""

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 200 or not self.name.isprintable():
            raise ConfigError(
                f"instance.name must have 1 to 200 printable characters, got {self.name!r}"
            )
        if is_private(self.listen):
            return
        listen_host, _ = split_address(self.listen, "instance.listen")
        if listen_host in _ANY_HOST and not self.host:
            raise ConfigError(
                f"instance.listen is {self.listen}, which is no address that others can connect "
                "to: set instance.host to one of this machine"
            )
        if is_loopback(listen_host) != is_loopback(self.reached_at):
            raise ConfigError(
                f"instance.listen is {self.listen} and instance.host is {self.host}: both must be "
                "loopback addresses, or neither"
            )

    @property
    def reached_at(self) -> str:
        """The host that others connect to."""
        return self.host or host_of(self.listen)


class Bound(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="bound"):
    """Dispatchers may connect; they get no answer before the model is loaded.

    Attributes:
        address: of ZeroMQ, "tcp://host:port" or "ipc://FILE".
        run_id: drawn anew at each start, hex.
    """

    address: str
    run_id: str
    pid: int


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="ready"):
    """It serves.

    Attributes:
        address: as it was bound.
        load_s: what loading took.
    """

    address: str
    load_s: float


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="failed"):
    """It cannot start, or go on: an error's code and message. The process ends."""

    code: str
    message: str


InstanceLine = Bound | Ready | Failed


def is_private(address: str) -> bool:
    """Whether an address is a file or directory, and not of a network."""
    return address.startswith(_PRIVATE)


def host_of(address: str) -> str:
    """The host of "host:port", or of an address of ZeroMQ; that of a private one is "localhost".

    Raises:
        ConfigError: it has none.
    """
    return "localhost" if is_private(address) else split_address(address.removeprefix("tcp://"))[0]


def split_address(text: str, name: str = "address") -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port".

    Raises:
        ConfigError: it is neither; the message begins with `name`.
    """
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise ConfigError(f"{name} is {text!r}: write host:port, for example 127.0.0.1:0")
    return match[1].strip("[]"), int(match[2])


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can connect to a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
