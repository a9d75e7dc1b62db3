"""Backends by the name of a device, and whether a model fits where it is to go."""

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.core.errors import ResourceError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.core.placement import CPU, Placement
from inlay.core.units import format_bytes
from inlay.models.formats import format_that_fits
from inlay.models.memory import free_memory_bytes
from inlay.models.native_ops import NativeOps
from inlay.models.ops import Ops
from inlay.models.placed import Placed
from inlay.models.weights import OpenWeights

if TYPE_CHECKING:
    import torch


def backend_of(device: str, name: str = "auto", gpu_bytes: int | None = None) -> Ops:
    """What computes on a device.

    Args:
        device: `cpu`, `cuda` or `cuda:<n>`.
        name: `auto` (native kernels on a CPU, on CUDA Triton or PyTorch), `native` or `torch`.
        gpu_bytes: most that a model takes of a GPU; None: what is free.

    Raises:
        UnsupportedModelError: no such device or backend.
        ResourceError: the device is not there.
    """
    if device == CPU and name in ("auto", "native"):
        return NativeOps()  # without PyTorch
    found = _device(device)
    if name == "auto" and found.type == "cuda" and importlib.util.find_spec("triton"):
        from inlay.models.gpu.ops import GpuOps

        return GpuOps(found, gpu_bytes)
    if name == "torch" or (name == "auto" and found.type == "cuda"):
        from inlay.models.torch_ops import TorchOps

        return TorchOps(found, gpu_bytes)
    raise UnsupportedModelError(
        f"backend {name!r} is not supported on {found}; supported are auto, torch, and on a CPU "
        "native"
    )


def _device(name: str) -> "torch.device":
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UnsupportedModelError(f"device {name!r} is not supported; supported are cpu, cuda")
    if device.type == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ResourceError(
            "device cuda was asked for, but this PyTorch finds no CUDA device: install a CUDA "
            "build of PyTorch and a driver, or use device cpu"
        )
    number, there = device.index or 0, torch.cuda.device_count()
    if number >= there:
        raise ResourceError(
            f"device {name} was asked for, and this machine has {there}: cuda:0"
            + (f" to cuda:{there - 1}" if there > 1 else "")
        )
    return torch.device("cuda", number)


def backends_of(placement: Placement, gpu_bytes: int | None = None) -> dict[str, Ops]:
    """Those of all devices of a placement. Arguments and errors are those of `backend_of`."""
    return {device: backend_of(device, gpu_bytes=gpu_bytes) for device in placement.devices}


def check_memory(
    directory: Path, opened: OpenWeights, shape: ModelShape, placed: Placed, *, packed: bool
) -> None:
    """Refuse weights that do not fit.

    Raises:
        ResourceError: a device has too little free memory; the message names a format that fits.
    """
    needed = placed.held_bytes(shape, opened.weight_format, opened.held_bytes)
    for device, held_bytes in needed.items():
        needed_bytes = held_bytes - opened.shared_bytes.get(device, 0)
        free_bytes = placed.backends[device].free_bytes()
        if needed_bytes <= free_bytes:
            continue
        if len(needed) > 1:
            raise ResourceError(
                f"the weights of {directory} need {format_bytes(needed_bytes)} of memory on "
                f"{device} beside what is placed elsewhere, and {format_bytes(free_bytes)} are "
                "free: close other programs, give the device less of the model (`inlay plan` says "
                "what fits), or take a weight_format of fewer bits"
            )
        advice = format_that_fits(shape, free_bytes, placed.first.weight_formats)
        if packed:
            advice = f"convert it again, {advice}"
        if device != CPU:
            here = free_memory_bytes()
            advice += f"; on device cpu, where {format_bytes(here)} are free, "
            advice += format_that_fits(shape, here)
        raise ResourceError(
            f"the weights of {directory} need {format_bytes(needed_bytes)} of memory on {device}, "
            f"and {format_bytes(free_bytes)} are free: close other programs, or {advice}"
        )
