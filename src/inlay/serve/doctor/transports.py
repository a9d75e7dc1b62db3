"""Which transports of the transfer engine work here."""

import os
from dataclasses import dataclass
from pathlib import Path

from inlay.core.errors import ConfigError, InlayError


@dataclass(frozen=True, kw_only=True)
class TransportState:
    """One transport.

    Attributes:
        name: as `TransferEngine(transports=...)` takes it.
        problem: why an engine does not use it by default; None where it does.
        ports: what it found, whether it is used or not.
        lacks: what it cannot do here although it works, and why.
    """

    name: str
    problem: str | None
    ports: tuple[str, ...] = ()
    lacks: str | None = None


def read_transports() -> tuple[TransportState, ...]:
    """Ask an engine that listens on loopback; none without the compiled extension."""
    from inlay.transfer import TransferEngine
    from inlay.transfer.cuda import find_cuda
    from inlay.transfer.fabric import find_fabric

    try:
        with TransferEngine(token=os.urandom(32)) as engine:
            problems = engine.transports
        fabric = find_fabric()
        cuda = find_cuda()
    except InlayError:
        return ()
    # RDMA is for engines that listen elsewhere.
    problems["fabric"] = fabric.problem
    # Engines do not start CUDA before they are given device memory.
    problems["cuda"] = cuda.problem
    ports = {"fabric": fabric.ports, "cuda": cuda.devices}
    lacks = {"shm": read_restriction(), "tcp": read_sharing()}
    return tuple(
        TransportState(
            name=name,
            problem=problem,
            ports=ports.get(name, ()),
            lacks=lacks.get(name),
        )
        for name, problem in sorted(problems.items())
    )


def read_restriction(root: Path = Path("/")) -> str | None:
    """Why processes of one user cannot read each other's memory (process_vm_readv) on this host.

    None where the system allows it. A single process may still refuse: `peer.problems` tells.
    """
    try:
        scope = (root / "proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:  # a kernel without Yama
        return None
    if scope == "0":
        return None
    return (
        "memory that peers registered is not read in place but goes over tcp, since sysctl "
        f"kernel.yama.ptrace_scope is {scope}, not 0; memory of engine.allocate is shared"
    )


def read_sharing() -> str | None:
    """Why processes do not share network cards by weight; None where they do."""
    from inlay.transfer.runtime_dir import runtime_dir

    try:
        runtime_dir()
    except (ConfigError, OSError) as error:
        return f"processes do not share a network card by their weights: {error}"
    return None
