"""Four ways to have prompts and outputs on the same GPUs.

`prefill_first`: a step takes all of the prompts that wait, so that outputs stand still meanwhile.
`decode_first`: prompts wait until all outputs that are under way have ended, as where requests are
computed in whole batches; then a step takes all of them. `chunked_N`: N tokens of prompts in a
step, beside outputs. `divided`: half of the machines compute prompts, the others outputs.

No figure was published of these on a public trace.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from inlay.core.roofline import Step, parts_of, work_of
from inlay.sim.results import Results
from inlay.sim.studies.found import Found
from inlay.sim.studies.mooncake import GPUS, cluster, design
from inlay.sim.studies.mooncake_run import mean_ttft_s, run
from inlay.sim.trace import Trace

WHOLE_PROMPTS = 131072


class _Mode(NamedTuple):
    """Tokens of prompts in a step; machines for prompts, or for all, and for outputs."""

    chunk_tokens: int
    prefill: int = 16
    decode: int = 0
    decode_first: bool = False


_MODES: Mapping[str, _Mode] = {
    "prefill_first": _Mode(WHOLE_PROMPTS),
    "decode_first": _Mode(WHOLE_PROMPTS, decode_first=True),
    "chunked_8192": _Mode(8192),
    "chunked_2048": _Mode(2048),
    "chunked_512": _Mode(512),
    "divided": _Mode(8192, 8, 8),
}


def measure(name: str, trace: Trace, *, mode: str) -> list[Found]:
    """`mfu` of the time in which GPUs worked, `p90_tbt_s`, `mean_ttft_s`, `worked`: of all time."""
    asked = _MODES[mode]
    kinds = [
        replace(kind, instance=replace(kind.instance, decode_first=asked.decode_first))
        for kind in cluster(asked.prefill, asked.decode, chunk_tokens=asked.chunk_tokens)
    ]
    results = run(trace, kinds, policy="local_cache_aware")
    worked_s = float(results.busy_s.sum())
    peak = GPUS * design().gpu.tflops["bf16"] * 1e12
    several = results.finished & (results.output_tokens > 1)
    return [
        Found(name="mfu", value=operations(results) / (worked_s * peak)),
        Found(name="p90_tbt_s", value=float(np.percentile(results.tbt_s[several], 90))),
        Found(name="mean_ttft_s", value=mean_ttft_s(results)),
        Found(name="worked", value=worked_s / (len(results.busy_s) * results.duration_s)),
    ]


def operations(results: Results) -> float:
    """What the model needs of multiplications and additions for what was not cached, once."""
    one = design()
    flops = {
        part.name: work_of(one.shape, part, Step(new_tokens=1)).flops
        for part in parts_of(one.shape, one.formats)
    }
    pair, last = flops.pop("attention core"), flops.pop("output matrix")
    done_R = results.finished
    cached_R = results.cached_tokens[done_R].astype(np.float64)
    outputs_R = results.output_tokens[done_R].astype(np.float64)
    # The last token of an output is not computed.
    end_R = results.input_tokens[done_R] + outputs_R - 1
    pairs_R = (end_R * (end_R + 1) - cached_R * (cached_R + 1)) / 2
    tokens, outputs = float((end_R - cached_R).sum()), float(outputs_R.sum())
    return sum(flops.values()) * tokens + last * outputs + pair * float(pairs_R.sum())
