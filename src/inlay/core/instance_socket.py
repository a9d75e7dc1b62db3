"""The ZeroMQ sockets between dispatchers and instances.

Queues have no limit, since both sides always read; heartbeats end a connection whose other side
does not. On one machine they are files of a directory that only its user may enter. Beyond it all
is encrypted, with keys that the deployment's secret gives: who does not know the secret can neither
read nor speak (CURVE; the instance's public key is never sent, so that to know it is to know the
secret). What listens on a loopback address is open to all users of the machine.
"""

import errno
import hashlib
import secrets
import socket as sockets

import zmq
from zmq.utils import z85

from inlay.core.errors import AddressInUseError, ConfigError
from inlay.core.instance_setup import (
    InstanceSetup,
    host_of,
    is_loopback,
    is_private,
    split_address,
)

HEARTBEAT_S = 0.5
SILENCE_S = 2.0
"""Without an answer to heartbeats for so long, a connection is given up."""

_STUCK_S = 5.0  # bytes that the other side's kernel does not take: heartbeats are behind them
_LINGER_MS = 1000


def new_socket(context: "zmq.Context[zmq.Socket[bytes]]", kind: int) -> "zmq.Socket[bytes]":
    """A socket whose queues have no limit."""
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, _LINGER_MS)
    return socket


def connect_instance(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, secret: str
) -> "zmq.Socket[bytes]":
    """A DEALER for an instance. It connects in the background, and again when that breaks.

    Args:
        address: as in `Bound`.
        secret: of the deployment; used where the address is not loopback.

    Raises:
        ConfigError: the address is none, or a secret is needed.
    """
    host = host_of(address)
    socket = new_socket(context, zmq.DEALER)
    try:
        _watch(socket, host)
        if not is_loopback(host):
            public, private = zmq.curve_keypair()
            socket.curve_serverkey = zmq.curve_public(_private_key(secret, address))
            socket.curve_publickey, socket.curve_secretkey = public, private
        socket.connect(address)
    except BaseException:
        socket.close(linger=0)
        raise
    return socket


def listen_for_dispatchers(socket: "zmq.Socket[bytes]", setup: InstanceSetup, secret: str) -> str:
    """Let dispatchers connect to a ROUTER from now on; returns the address to tell them.

    Raises:
        ConfigError: the address is none of this machine's, or a secret is needed.
        AddressInUseError: the port is taken.
    """
    if is_private(setup.listen):
        return _listen_in(socket, setup.listen)
    host, port = split_address(setup.listen, "instance.listen")
    reached_at = setup.reached_at
    _watch(socket, host)
    if not is_loopback(host):
        socket.curve_server = True
        socket.curve_secretkey = _private_key(secret, setup.listen)
    try:
        ip = sockets.getaddrinfo(host, None)[0][4][0]
        socket.bind(f"tcp://[{ip}]:{port}" if ":" in str(ip) else f"tcp://{ip}:{port}")
    except (zmq.ZMQError, sockets.gaierror) as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"instance.listen: {setup.listen} is taken: choose another port, or 0 for any"
            ) from None
        raise ConfigError(
            f"instance.listen: {setup.listen} cannot be listened on ({error}): write an address "
            "of this machine"
        ) from None
    bound_port = socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2]
    shown = f"[{reached_at}]" if ":" in reached_at else reached_at
    return f"tcp://{shown}:{bound_port}"


def _listen_in(socket: "zmq.Socket[bytes]", directory: str) -> str:
    """Listen on a new file of a directory. Its name is drawn, as a free port is."""
    address = f"{directory}/{secrets.token_hex(4)}"
    _watch(socket, host_of(address))
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"instance.listen: no socket can be made in {directory} ({error}): write a directory "
            "of yours, with a path of at most 90 bytes"
        ) from None
    return address


def _watch(socket: "zmq.Socket[bytes]", host: str) -> None:
    """Notice, on connections made from now on, that the other side is gone or stands still."""
    socket.setsockopt(zmq.IPV6, int(":" in host))
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(1000 * HEARTBEAT_S))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(1000 * SILENCE_S))
    socket.setsockopt(zmq.TCP_MAXRT, int(1000 * _STUCK_S))
    socket.setsockopt(zmq.CONNECT_TIMEOUT, int(1000 * SILENCE_S))


def _private_key(secret: str, address: str) -> bytes:
    """The instances' private key, as ZeroMQ writes keys."""
    if not secret:
        raise ConfigError(
            f"{address} can be reached from other machines, so both sides need the deployment's "
            "secret: set cache.secret, or use a loopback address"
        )
    seed = hashlib.blake2b(secret.encode(), digest_size=32, person=b"inlay-instance").digest()
    return z85.encode(seed)
