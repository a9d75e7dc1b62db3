"""How long steps of a design take: what its GPUs compute, exchange and wait for."""

from inlay.sim import exchanges
from inlay.sim.design import InstanceDesign
from inlay.sim.forms import PROMPT, STEP, Part, in_halves, longest, summed
from inlay.sim.host_experts import beside_host
from inlay.sim.operators import operators
from inlay.sim.step_time import StepTime


def step_time(design: InstanceDesign) -> StepTime:
    """What steps of an instance take, all of its GPUs together.

    Cost: milliseconds; where parts run beside each other, some tens of forms, which each step of a
    simulation is multiplied with.
    """
    if design.host_share:
        parts = [*beside_host(design, operators(design)), *_launched(design)]
    else:
        parts = [*operators(design).values(), *_launched(design)]
    routed = exchanges.routed(design)
    if routed and design.costs.two_batches:
        slowed = tuple(design.costs.exchange_processors * row_F * PROMPT for row_F in routed)
        parts = [longest([summed([*map(in_halves, parts), slowed]), in_halves(routed)])]
    elif routed:
        parts.append(routed)
    parts += exchanges.summed_up(design)
    if design.costs.step_s:
        parts.append((design.costs.step_s * STEP,))
    return StepTime(tuple(tuple(tuple(row_F.tolist()) for row_F in part) for part in parts))


def _launched(design: InstanceDesign) -> list[Part]:
    costs = design.costs
    seconds = costs.kernel_s * costs.layer_kernels * design.shape.layers
    return [(seconds * STEP,)] if seconds else []
