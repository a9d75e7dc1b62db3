"""The case kernels/gpu, point by point, as long as there is time."""

import torch

from benchmarks.case import Run, load_case
from benchmarks.gpu_day.stage import Context
from benchmarks.kernels.gpu import measure_point, points
from benchmarks.kernels.gpu_limits import measure_limits

CASE = "kernels/gpu"
LEAST_S = 6.0  # for a point whose kernel is compiled first


def run(context: Context) -> None:
    """A point that fails is said, and the next one is measured."""
    context.machine("triton")
    device = torch.device(context.device)
    of_case = Run(case=load_case(CASE), quick=context.rehearsal)
    limits = measure_limits(device)
    for name, point in points(of_case):
        if context.is_measured(CASE, name, point):
            continue
        context.need(LEAST_S, f"{name} {point}")
        with context.checking(f"{name} {point}"):
            context.samples(CASE, measure_point(name, point, device, limits, of_case.repeats))
