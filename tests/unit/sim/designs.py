"""Designs of instances, and steps as features."""

from inlay.core.hardware import Device, Efficiency, Machine
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.sim.design import NO_COSTS, InstanceDesign, Parallelism, file_formats
from inlay.sim.step_time import step_features

NODE = Device(title="node", memory_gb=1000, bandwidth_gbs=200, tflops={"fp32": 1})
GPU = Device(
    title="gpu",
    memory_gb=2000,
    bandwidth_gbs=2000,
    tflops={"fp32": 20, "bf16": 400, "fp8": 800},
    link_gbs=50,
    peer_gbs=200,
    network_gbs=25,
    efficiency=Efficiency(measured="in this test"),
)
HOST = Machine(name="host", nodes=(NODE,), gpus=(GPU,) * 8)


def known(name):
    config = known_config(name)
    assert config is not None
    return shape_of(config)


def design_of(model, **changes):
    """Without costs, on a host of 8 GPUs of 2 TB."""
    shape = known(model)
    across = {
        name: changes.pop(name)
        for name in tuple(changes)
        if name in Parallelism.__dataclass_fields__
    }
    return InstanceDesign(
        **{
            "shape": shape,
            "formats": file_formats(shape),
            "machine": HOST,
            "parallelism": Parallelism(**across),
            "costs": NO_COSTS,
        }
        | changes
    )


def step_of(shape, prompts=(), contexts=()):
    """Features of a step: of prompts (new, cached) tokens, of decodes their contexts; (1, F)."""
    chosen = {"experts": shape.experts, "experts_per_token": shape.experts_per_token}
    return step_features(prompts, contexts, **chosen)
