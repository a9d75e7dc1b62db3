"""What a GPU gives: copies in its memory, bf16 products, and copies over its link to the host."""

from dataclasses import dataclass

import torch

from benchmarks.kernels.gpu_time import rate

ROOF = "bytes at the copy's rate or operations at bf16's, the longer"
LINK = "pinned copy to the GPU"


@dataclass(frozen=True, kw_only=True)
class GpuLimits:
    """Measured where the kernels run.

    Attributes:
        copy_gbs: of a copy in the GPU's memory, bytes read and written together.
        products_tflops: of a square product in bf16 by the library.
        link_gbs: of a copy from page-locked memory of the host.
    """

    copy_gbs: float
    products_tflops: float
    link_gbs: float

    def roof_us(self, nbytes: float, operations: float) -> float:
        """The least that so many bytes and operations take."""
        return max(nbytes / self.copy_gbs / 1e3, operations / self.products_tflops / 1e6)


def measure_limits(device: torch.device) -> GpuLimits:
    """Takes under a second on a GPU. On a CPU sizes are small: the numbers only stand in."""
    cuda = device.type == "cuda"
    size = 1 << (30 if cuda else 20)
    side = 8192 if cuda else 256
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    square = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    return GpuLimits(
        copy_gbs=rate(lambda: target.copy_(source), 2 * size / 1e9, device),
        products_tflops=rate(lambda: square @ square, 2 * side**3 / 1e12, device),
        link_gbs=copy_to_gpu_gbs(target[: size // 4], page_locked=cuda),
    )


def copy_to_gpu_gbs(target: torch.Tensor, *, page_locked: bool) -> float:
    """GB/s of copies from the host."""
    host = torch.zeros(target.numel(), dtype=torch.uint8, pin_memory=page_locked)
    return rate(
        lambda: target.copy_(host, non_blocking=True),
        target.numel() / 1e9,
        target.device,
    )


def copy_to_host_gbs(source: torch.Tensor, *, page_locked: bool) -> float:
    """GB/s of copies to the host."""
    host = torch.zeros(source.numel(), dtype=torch.uint8, pin_memory=page_locked)
    return rate(
        lambda: host.copy_(source, non_blocking=True),
        source.numel() / 1e9,
        source.device,
    )
