"""Ports that processes of a deployment keep over their restarts."""

import socket

from inlay.serve.http_server import bind


def reserve_port(host: str, port: int, *, key: str) -> socket.socket:
    """A socket that keeps a port for those that share it (SO_REUSEPORT); it does not listen.

    Args:
        port: 0 takes a free one.
        key: how a user chooses another port, for the message about one that is taken.

    Raises:
        AddressInUseError: another process listens there.
        ConfigError: the address is not one of this machine's, or needs other rights.
    """
    # First without sharing: another deployment's dispatchers would share the port with us.
    with bind(host, port, option=f"{key} = {{port}}") as probe:
        family, address = probe.family, probe.getsockname()
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind(address)
    except OSError:
        # There are old connections of a server that did not share it. With this option, others
        # could listen here before a dispatcher does, so it is not the first choice.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
    return held


def free_port(host: str) -> int:
    """A port that is free now, for a process that takes it soon and keeps it."""
    with bind(host, 0) as probe:
        port: int = probe.getsockname()[1]
    return port
