"""DeepSeek-V3 on many H100: where experts lie, what travels, and tokens per second of a machine.

Prompts have 4,096 tokens, four for each GPU in a step; outputs are of 256 requests a GPU behind
2,000 tokens. All GPUs of an instance share whole experts; `tensor` of them share the attention of a
request. `even` experts are chosen alike; else tokens choose them by Zipf's law with an exponent of
0.5, which is our own: what real ones have was not published. `numbered` ones lie as they come, of
`packed` ones the busiest have 32 copies and all are packed so that GPUs are alike, as EPLB does.

Source: SGLang (LMSYS, May 2025), 3 machines for prompts and 9 for outputs with EPLB and two
batches.
"""

from inlay.core.hardware import machine_named
from inlay.sim.design import Costs, InstanceDesign, Parallelism, file_formats
from inlay.sim.expert_balance import imbalance
from inlay.sim.roofline_time import step_time
from inlay.sim.step_time import step_features
from inlay.sim.studies.found import Found
from inlay.sim.studies.known import known_shape

EXPONENT = 0.5
COPIES = 32
_GPUS_OF_A_MACHINE = 8
_PROMPT, _PROMPTS_OF_A_GPU = 4096, 4
_CONTEXT, _REQUESTS_OF_A_GPU = 2050, 256
# Tokens/s of a machine, by what is computed, of 24 and of 72 GPUs.
PAPER = {("prefill", 24): 52_300.0, ("decode", 72): 22_300.0}


def measure(*, role: str, gpus: int, tensor: int, experts: str, two_batches: bool) -> list[Found]:
    """`tokens_per_s` of a machine.

    Args:
        role: `prefill` or `decode`.
        gpus: of the instance.
        tensor: GPUs that share the attention of a request.
        experts: `even`, `numbered` or `packed`.
        two_batches: whether one half of a step travels while the other is computed.
    """
    shape = known_shape("deepseek-v3")
    copies = 0 if experts == "numbered" else COPIES
    uneven = 1.0
    if experts != "even":
        uneven = imbalance(
            shape.experts, gpus, exponent=EXPONENT, redundant=copies, balanced=experts == "packed"
        )
    design = InstanceDesign(
        shape=shape,
        formats=file_formats(shape),
        machine=machine_named("xeon-spr-2s+8xh100"),
        chunk_tokens=_PROMPT,
        parallelism=Parallelism(
            tensor=tensor,
            data=gpus // tensor,
            whole_experts=True,
            redundant_experts=copies,
            imbalance=uneven,
        ),
        costs=Costs(two_batches=two_batches),
    )
    prompts = _PROMPTS_OF_A_GPU * gpus if role == "prefill" else 0
    outputs = _REQUESTS_OF_A_GPU * gpus if role == "decode" else 0
    step = step_features(
        [(_PROMPT, 0)] * prompts,
        [_CONTEXT] * outputs,
        experts=shape.experts,
        experts_per_token=shape.experts_per_token,
    )
    rate = (prompts * _PROMPT + outputs) / float(step_time(design).seconds(step)[0])
    as_published = experts != "numbered" and two_batches and tensor == 1
    return [
        Found(
            name="tokens_per_s",
            value=rate * _GPUS_OF_A_MACHINE / gpus,
            published=PAPER.get((role, gpus)) if as_published else None,
        )
    ]
