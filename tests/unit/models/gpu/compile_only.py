"""Compile what the launchers launch, for a GPU that need not be there: `compile_only 90`.

Runs in a process of its own, without the interpreter. Tensors lie in the CPU's memory and say that
they are a GPU's. Prints a line for each kernel: name, bytes of shared memory, tensor-core products.
"""

import sys
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from inlay import kernels
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.linear import linear, linear_heads
from inlay.models.gpu.panels import Panels
from tests.unit.models.gpu.products import PACKED

ROWS = (1, 40, 300)


class NoDevice:
    """What Triton asks of a driver before it launches."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", int(sys.argv[1]), 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class Claimed(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = property(lambda self: True)


def zeros(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(size, dtype=dtype).as_subclass(Claimed)


def compile_only() -> None:
    """Replace launches."""
    run = JITFunction.run
    seen = set()

    def compile_and_tell(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        if kernel.hash not in seen:
            seen.add(kernel.hash)
            ptx = kernel.asm["ptx"]
            products = ptx.count("mma.sync.aligned") + ptx.count("wgmma.mma_async")
            print(self.__name__, kernel.metadata.shared, products, len(kernel.asm["cubin"]))
        return kernel

    JITFunction.run = compile_and_tell  # type: ignore[method-assign]


def main() -> None:
    driver.set_active(NoDevice())
    compile_only()
    cpu = torch.device("cpu")
    for weight_format in PACKED:
        panels = Panels.empty(1, 128, 256, weight_format, cpu)
        for rows in ROWS if weight_format == "int4:g32" else ROWS[:1]:
            linear(zeros(rows, 256), panels, zeros(rows, 128))
    linear(zeros(1, 256), panels, zeros(1, 128), bias_N=zeros(128), accumulate=True, pieces=2)
    linear_heads(zeros(2, 3, 256), Panels.empty(3, 128, 256, "int8", cpu), zeros(2, 3, 128))
    experts = GpuExperts(4, 256, 128, "mxfp4", cpu, biases=True)
    for tokens in ROWS:
        slots, routing = zeros(tokens, 2, dtype=torch.int32), zeros(tokens, 2)
        experts.moe(zeros(tokens, 256), slots, routing, zeros(tokens, 256), kernels.SILU)


if __name__ == "__main__":
    main()
