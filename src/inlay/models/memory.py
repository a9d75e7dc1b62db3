"""How much memory this process may use: the machine's, or its control group's if that is less.

Loads no torch, but where there is a GPU.
"""

import ctypes
import gc
import sys

import psutil

from inlay.core.cgroup import read_limits
from inlay.core.kv_format import KvFormat
from inlay.core.units import parse_bytes, size_to_set

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

POOL_SHARE = 0.85
"""Of free memory that pages may take; the rest is for what a step computes."""


def total_memory_bytes() -> int:
    """Memory that the machine, or the container, has in all."""
    limit = read_limits().memory_bytes
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)


def free_memory_bytes() -> int:
    """Memory that can still be taken; clean pages of files count as free."""
    left = read_limits().memory_left_bytes
    free = int(psutil.virtual_memory().available)
    return free if left is None else min(free, left)


def device_free_bytes(device: str) -> int:
    """Memory of `cpu`, `cuda` or `cuda:<n>` that can still be taken."""
    if device == "cpu":
        return free_memory_bytes()
    import torch

    return int(torch.cuda.mem_get_info(device)[0])


def num_gpus() -> int:
    """CUDA devices that PyTorch can use. Loads it only where there is a driver for them."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    import torch

    return int(torch.cuda.device_count()) if torch.cuda.is_available() else 0


def device_memory_errors() -> tuple[type[BaseException], ...]:
    """What PyTorch raises where a device has too little memory; nothing where it is not loaded."""
    torch = sys.modules.get("torch")
    return () if torch is None else (torch.OutOfMemoryError,)


def give_back_device_memory() -> None:
    """Hand memory of GPUs that PyTorch keeps back to their drivers."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def give_back_freed() -> None:
    """Hand memory that was freed back to the system, which the allocator keeps otherwise: of what
    files were read into, some GB. Cost: some milliseconds for each GB.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


def keep_freed() -> None:
    """Let the allocator keep what is freed for what is asked for next: steps that take and free the
    same arrays find them where they were, in place of new pages that the system clears first.

    Arrays above 32 MiB go back at once in any case. `give_back_freed` still hands all of it back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        for option, value in ((_M_TRIM_THRESHOLD, 1 << 30), (_M_MMAP_THRESHOLD, 32 << 20)):
            mallopt(option, value)


def pages_that_fit(kv_format: KvFormat, num_pages: int) -> str:
    """What to say where pages do not fit, but `num_pages` of them would."""
    if num_pages < 1:
        return "not one page fits: take a weight_format of fewer bits, or a smaller model"
    size = size_to_set(num_pages * kv_format.page_bytes, up=False)
    if parse_bytes(size) < kv_format.page_bytes:
        size = str(num_pages * kv_format.page_bytes)
    tokens = num_pages * kv_format.page_tokens
    return (
        f"set cache.memory={size}, or cache.pages={num_pages} for {tokens} tokens (on the command "
        f"line --kv-memory {size})"
    )
