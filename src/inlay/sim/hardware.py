"""From hardware that nobody has to instances of a simulation.

    design = InstanceDesign(shape=shape, formats=file_formats(shape), machine=machine_named(
        "xeon-spr-2s+8xh800"), parallelism=Parallelism(tensor=8))
    config = instance_of(design)

What is left out: that a flow to or from a request's group has only that group's adapters.
"""

from collections.abc import Sequence

from inlay.sim.capacity import capacity, token_bytes
from inlay.sim.design import InstanceDesign
from inlay.sim.roofline_time import step_time
from inlay.sim.tier import Tier
from inlay.sim.world import InstanceConfig


def instance_of(
    design: InstanceDesign,
    *,
    page_tokens: int = 512,
    max_running: int = 256,
    noise: float = 0.0,
    tiers: Sequence[Tier] = (),
) -> InstanceConfig:
    """The instance that a design says.

    A step has a chunk of a prompt for each stage and group.

    Args:
        page_tokens: the block size of the trace.
        max_running: requests at a time, of all groups.
        noise: relative standard deviation of a step's time.
        tiers: its host and disk, as `capacity.tiers` has them; by default it uses neither.

    Raises:
        ResourceError: the model does not fit.
    """
    across, shape = design.parallelism, design.shape
    behind = {tier.name: tier for tier in tiers}
    network = across.gpus * design.gpu.network_gbs * 1e9 * design.costs.network_share
    return InstanceConfig(
        step_time=step_time(design),
        num_pages=capacity(design).tokens // page_tokens,
        page_tokens=page_tokens,
        max_batch_tokens=across.data * across.pipeline * design.chunk_tokens + max_running,
        max_running=max_running,
        prefill_chunk=across.pipeline * design.chunk_tokens,
        noise=noise,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
        token_bytes=token_bytes(design),
        layers=shape.layers,
        out_bytes_per_s=network,
        in_bytes_per_s=network,
        host=behind.get("host"),
        disk=behind.get("disk"),
    )


def price_usd(design: InstanceDesign) -> float | None:
    """Of a design's GPUs, and of its hosts' processors and memory; None: one is not known."""
    nodes, gpu = design.machine.nodes, design.gpu
    prices = [node.price_usd for node in nodes]
    if gpu.price_usd is None or None in prices:
        return None
    host = sum(price or 0.0 for price in prices)
    return design.hosts * host + design.parallelism.gpus * gpu.price_usd
