"""What libfabric has on this machine; engines look for themselves."""

from dataclasses import dataclass

from inlay.transfer import _backend


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """Ports of libfabric.

    Attributes:
        problem: why an engine that names no transports does not use them, wherever it listens.
        ports: provider and port, such as "verbs mlx5_0"; those of the tcp provider serve engines
            that name the transport.
    """

    problem: str | None
    ports: tuple[str, ...]


def find_fabric() -> Fabric:
    """Load libfabric and list its ports.

    Raises:
        TransportUnavailableError: the compiled extension is missing.

    Cost: 0.3 s for the first call of a process.
    """
    problem, ports = _backend.find_fabric()
    return Fabric(problem=problem or None, ports=tuple(ports))
