"""What one request gains where experts of the host are added a layer later.

DeepSeek-V3 in bf16, its routed experts in the memory of two Xeon 8452Y, the rest on an A100.

Source: KTransformers (SOSP'25), tokens/s of one request without deferral and with 3 of 8 experts.
"""

from inlay.core.hardware import machine_named
from inlay.core.roofline import Formats
from inlay.sim.design import InstanceDesign
from inlay.sim.roofline_time import step_time
from inlay.sim.step_time import step_features
from inlay.sim.studies.found import Found
from inlay.sim.studies.known import known_shape

PAPER = {0: 5.87, 3: 7.79}
_CONTEXT = 128


def measure(*, deferred: int) -> list[Found]:
    """`tokens_per_s` with so many of a token's experts deferred, behind 128 tokens."""
    shape = known_shape("deepseek-v3")
    held = "bfloat16"
    design = InstanceDesign(
        shape=shape,
        formats=Formats(experts=held, mlp=held, attention=held, head=held),
        machine=machine_named("xeon-spr-2s+a100"),
        host_share=1.0,
        deferred_experts=deferred,
    )
    step = step_features(
        contexts=[_CONTEXT],
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
    )
    rate = 1 / float(step_time(design).seconds(step)[0])
    return [Found(name="tokens_per_s", value=rate, published=PAPER.get(deferred))]
