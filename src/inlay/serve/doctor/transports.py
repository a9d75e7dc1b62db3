"""Which transports of the transfer engine work here."""

import os
from dataclasses import dataclass

from inlay.core.errors import InlayError


@dataclass(frozen=True, kw_only=True)
class TransportState:
    """One transport.

    Attributes:
        name: as `TransferEngine(transports=...)` takes it.
        problem: why an engine does not use it by default; None where it does.
        ports: what it found, whether it is used or not.
    """

    name: str
    problem: str | None
    ports: tuple[str, ...] = ()


def read_transports() -> tuple[TransportState, ...]:
    """Ask an engine that listens on loopback; none without the compiled extension."""
    from inlay.transfer import TransferEngine
    from inlay.transfer.fabric import find_fabric

    try:
        with TransferEngine(token=os.urandom(32)) as engine:
            problems = engine.transports
        fabric = find_fabric()
    except InlayError:
        return ()
    # RDMA is for engines that listen elsewhere.
    problems["fabric"] = fabric.problem
    return tuple(
        TransportState(name=name, problem=problem, ports=fabric.ports if name == "fabric" else ())
        for name, problem in sorted(problems.items())
    )
