"""kernels/gpu: each kernel of the GPU backend beside what the GPU gives and PyTorch's libraries.

Ours and the library's take turns, each as a CUDA graph of several calls on data of their own, so
that nothing lies in a cache from the call before. Experts stand beside `torch._grouped_mm` on as
many rows for each expert, which neither gathers rows nor adds them up, nor activates anything.
"""

import sys
from collections.abc import Generator, Sequence
from typing import Any

import torch

from benchmarks.case import Run
from benchmarks.kernels.gpu_hand_over import bring_gbs, hand_over_us
from benchmarks.kernels.gpu_limits import LINK, ROOF, GpuLimits, measure_limits
from benchmarks.kernels.gpu_sides import sides_of
from benchmarks.kernels.gpu_time import Call, Timed, take_turns
from benchmarks.kernels.layers import LayerShape
from benchmarks.triples import Samples

NAMES = ("forward", "hand_over", "bring_experts")


def measure(run: Run) -> Generator[Samples, None, None]:
    """All points, on the first GPU."""
    device = torch.device("cuda:0")
    limits = measure_limits(device)
    for name, point in points(run):
        yield measure_point(name, point, device, limits, run.repeats)


def points(run: Run) -> list[tuple[str, dict[str, Any]]]:
    """Name and parameters of all points of a run, in the order of the file."""
    return [(name, point) for name in NAMES for point in run.params(name)]


def measure_point(
    name: str, point: dict[str, Any], device: torch.device, limits: GpuLimits, repeats: int
) -> Samples:
    """Make the data of a point and time it."""
    if name == "hand_over":
        shape = LayerShape.of(point)
        values = hand_over_us(shape, point["rows"], point["layers"], device, repeats)
        return Samples(name=name, params=point, values=values)
    if name == "bring_experts":
        values = bring_gbs(LayerShape.of(point), point["format"], device, repeats)
        return Samples(name=name, params=point, values=values, limit=(LINK, limits.link_gbs))
    sides = sides_of(point, device)
    timed = {"": Timed(sides.ours, device)}
    for label, calls in sides.peers.items():
        if (peer := _peer(label, calls, device)) is not None:
            timed[label] = peer
    found = take_turns(timed, repeats)
    return Samples(
        name=name,
        params=point,
        values=found.pop(""),
        limit=(ROOF, limits.roof_us(sides.nbytes, sides.operations)),
        peers=found,
    )


def _peer(label: str, calls: Sequence[Call], device: torch.device) -> Timed | None:
    try:
        return Timed(calls, device)
    except (RuntimeError, NotImplementedError) as error:
        print(f"peer left out: {label}: {error}", file=sys.stderr)
        return None
