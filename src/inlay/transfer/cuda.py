"""What CUDA has on this machine; engines look for themselves, when they are given device memory."""

from dataclasses import dataclass

from inlay.transfer import _backend


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """CUDA devices.

    Attributes:
        problem: why engines cannot use device memory here.
        devices: number and name, such as "cuda:0 NVIDIA H200", of those that are visible.
    """

    problem: str | None
    devices: tuple[str, ...]


def find_cuda() -> Cuda:
    """Start CUDA and list its devices; no context is made on them.

    Children that this process forks afterwards cannot use CUDA.

    Raises:
        TransportUnavailableError: the compiled extension is missing.

    Cost: 0.1 s and more for the first call of a process.
    """
    problem, devices = _backend.find_cuda()
    return Cuda(problem=problem or None, devices=tuple(devices))
