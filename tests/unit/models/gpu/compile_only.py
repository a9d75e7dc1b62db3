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

from inlay.core.model_shape import RouterShape
from inlay.models.gpu.attention import Paged, attention
from inlay.models.gpu.expert_adapters import AddedPairs, GpuExpertAdapter
from inlay.models.gpu.experts import GpuExperts
from inlay.models.gpu.linear import linear, linear_heads
from inlay.models.gpu.panels import Panels
from inlay.models.gpu.rope import rope_and_store
from inlay.models.gpu.route import route

ROWS = (1, 40, 300)
# One of each way to take numbers and scales from words.
FORMATS = ("bfloat16", "int8", "fp8:g128", "uint4:g32", "mxfp4", "int4:g32")


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
            print(self.__name__, kernel.metadata.shared, products)
        return kernel

    JITFunction.run = compile_and_tell  # type: ignore[method-assign]


def main() -> None:
    driver.set_active(NoDevice())
    compile_only()
    cpu = torch.device("cpu")
    for weight_format in FORMATS:
        panels = Panels.empty(1, 128, 256, weight_format, cpu)
        for rows in ROWS if weight_format == "int4:g32" else ROWS[:2]:
            linear(zeros(rows, 256), panels, zeros(rows, 128))
    linear(zeros(1, 256), panels, zeros(1, 128), bias_N=zeros(128), accumulate=True, pieces=2)
    linear_heads(zeros(2, 3, 256), Panels.empty(3, 128, 256, "int8", cpu), zeros(2, 3, 128))
    experts = GpuExperts(4, 256, 128, "mxfp4", cpu, biases=True)
    pair = torch.zeros(8, 256), torch.zeros(128, 8), 1.0
    adapter = GpuExpertAdapter(4, 256, 128, {(1, "up"): pair}, cpu)
    for tokens in ROWS:
        slots, routing = zeros(tokens, 2, dtype=torch.int32), zeros(tokens, 2)
        for added in (None, AddedPairs([adapter], zeros(tokens, dtype=torch.int32), slots)):
            experts.moe(zeros(tokens, 256), slots, routing, zeros(tokens, 256), added=added)
    for dtype, kv_heads, head_dim, value_dim in (
        (torch.bfloat16, 2, 128, 0),
        (torch.float32, 2, 128, 0),
        (torch.bfloat16, 1, 576, 512),
    ):
        data = zeros(8, 2, 1 if value_dim else 2, 16, kv_heads, head_dim, dtype=dtype)
        for tokens, pieces in ((2, 4), (200, 1)):
            table, starts, lens = (zeros(*size, dtype=torch.int32) for size in ((2, 4), (3,), (2,)))
            attention(
                zeros(tokens, 16, head_dim),
                Paged(data, 1, table, starts, lens),
                zeros(tokens, 16, value_dim or head_dim),
                scale=1.0,
                window=0 if value_dim else 100,
                sinks_H=None if value_dim else zeros(16),
                value_dim=value_dim,
                pieces=pieces,
            )
    router = RouterShape(score="sigmoid", groups=8, groups_per_token=4, group_score="best_two")
    route(zeros(3, 256), router, zeros(256), zeros(3, 8, dtype=torch.int32), zeros(3, 8))
    route(zeros(3, 128), RouterShape(), None, zeros(3, 8, dtype=torch.int32), zeros(3, 8))
    for heads, data, norm in (
        (4, zeros(8, 2, 2, 16, 2, 128, dtype=torch.bfloat16), zeros(128)),
        (4, zeros(8, 2, 1, 16, 1, 576, dtype=torch.bfloat16), None),
    ):
        planes, _, kv_heads, width = data.shape[2:]
        qkv, angles = zeros(3, (heads + planes * kv_heads) * width), zeros(3, 32)
        slots = zeros(3, dtype=torch.int64)
        for rotate_first in {False, norm is not None}:
            rope_and_store(
                qkv, angles, angles, data, 1, slots, heads=heads, first=width - 64, q_norm_D=norm,
                k_norm_D=norm, rotate_first=rotate_first,
            )  # fmt: skip


if __name__ == "__main__":
    main()
