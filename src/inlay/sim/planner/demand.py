"""What the requests of a trace need, whatever serves them.

Shapes: `R` requests.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.slo import SloClass
from inlay.core.errors import TraceError
from inlay.sim.trace import Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Demand:
    """Requests, and the times that their objectives leave.

    Attributes:
        slo: objectives of all requests.
        input_R, output_R: tokens.
        new_R: prompt tokens that no earlier request had, as if caches forgot nothing.
        prefill_s: in which all prompts are computed, if each keeps its objective.
        decode_s: in which all tokens are produced.
        block_tokens: of the trace.
    """

    slo: SloClass
    input_R: Floats
    output_R: Floats
    new_R: Floats
    prefill_s: float
    decode_s: float
    block_tokens: int

    @property
    def gap_s(self) -> float:
        """That most gaps between tokens have to keep."""
        return min(self.slo.tbt_s, self.slo.itl_s)

    @property
    def pairs_R(self) -> Floats:
        """Pairs of tokens that attention to prompts has."""
        return self.new_R * (self.input_R - self.new_R) + self.new_R * (self.new_R + 1) / 2

    @property
    def rows_R(self) -> Floats:
        """Steps of decoding."""
        return self.output_R - 1

    @property
    def context_R(self) -> Floats:
        """Tokens that these steps attend to, together."""
        return self.rows_R * (self.input_R + self.output_R / 2)


def demand_of(trace: Trace, slo: SloClass) -> Demand:
    """What a trace needs under these objectives.

    Raises:
        TraceError: it has no request.

    Cost: sorting the trace's blocks.
    """
    if not len(trace):
        raise TraceError("the trace has no request: nothing can be planned for it")
    inputs_R = trace.input_tokens.astype(np.float64)
    outputs_R = trace.output_tokens.astype(np.float64)
    first_token_R = trace.arrival_s + slo.ttft_s
    last_token_R = first_token_R + outputs_R * min(slo.tbt_s, slo.itl_s)
    return Demand(
        slo=slo,
        input_R=inputs_R,
        output_R=outputs_R,
        new_R=np.maximum(1.0, inputs_R - _seen_tokens(trace)),
        prefill_s=float(first_token_R.max()),
        decode_s=float(last_token_R.max()),
        block_tokens=trace.block_tokens,
    )


def _seen_tokens(trace: Trace) -> Floats:
    """Of each prompt, those in whole blocks that an earlier request had, (R,)."""
    starts = trace.block_starts
    counts = np.diff(starts)
    _, first, block = np.unique(trace.blocks, return_index=True, return_inverse=True)
    request = np.repeat(np.arange(len(trace)), counts)
    place = np.arange(len(trace.blocks)) - np.repeat(starts[:-1], counts)
    whole = place < (trace.input_tokens // trace.block_tokens)[request]
    seen = whole & (first[block] < starts[request])
    tokens: Floats = np.bincount(request[seen], minlength=len(trace)) * np.float64(
        trace.block_tokens
    )
    return tokens
