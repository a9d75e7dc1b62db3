"""What the requests of a trace need, whatever serves them.

Shapes: `R` requests.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.slo import SloClass
from inlay.core.errors import TraceError
from inlay.sim.known_names import KnownNames
from inlay.sim.trace import Trace

Floats = NDArray[np.float64]

Parts = Callable[[], Iterable[Trace]]
"""A trace in consecutive parts, from its start each time it is called."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Demand:
    """Requests, and the times that their objectives leave.

    Attributes:
        parts: the requests themselves, for simulations.
        slo: objectives of all requests.
        input_R, output_R: tokens.
        new_R: prompt tokens that no earlier request had, as if caches forgot nothing.
        prefill_s: in which all prompts are computed, if each keeps its objective.
        decode_s: in which all tokens are produced.
        last_s: when the last one comes.
        block_tokens: of the trace.
    """

    parts: Parts
    slo: SloClass
    input_R: Floats
    output_R: Floats
    new_R: Floats
    prefill_s: float
    decode_s: float
    last_s: float
    block_tokens: int

    def __len__(self) -> int:
        return len(self.input_R)

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


def demand_of(parts: Parts, slo: SloClass) -> Demand:
    """What a trace needs under these objectives.

    Raises:
        TraceError: it has no request, or a name of a block comes behind two others.

    Cost: sorting the trace's blocks once. Memory for a part, 16 bytes for each different block, and
    some 100 bytes for each request.
    """
    known = KnownNames()
    columns: list[tuple[Floats, Floats, Floats, Floats]] = []
    requests, block_tokens = 0, 0
    for part in parts():
        try:
            seen = known.add(part)
        except TraceError as error:
            place = None if error.request is None else requests + error.request
            raise TraceError(error.reason, place) from None
        inputs_R = part.input_tokens.astype(np.float64)
        new_R = np.maximum(1.0, inputs_R - _seen_tokens(part, seen))
        columns.append((part.arrival_s, inputs_R, part.output_tokens.astype(np.float64), new_R))
        requests += len(part)
        block_tokens = part.block_tokens
    if not requests:
        raise TraceError("the trace has no request: nothing can be planned for it")
    arrival_R, inputs_R, outputs_R, new_R = (
        np.concatenate(column) for column in zip(*columns, strict=True)
    )
    last_token_R = arrival_R + slo.ttft_s + outputs_R * min(slo.tbt_s, slo.itl_s)
    return Demand(
        parts=parts,
        slo=slo,
        input_R=inputs_R,
        output_R=outputs_R,
        new_R=new_R,
        prefill_s=float(arrival_R[-1]) + slo.ttft_s,
        decode_s=float(last_token_R.max()),
        last_s=float(arrival_R[-1]),
        block_tokens=block_tokens,
    )


def _seen_tokens(part: Trace, seen: NDArray[np.bool_]) -> Floats:
    """Of each prompt, those in whole blocks that an earlier request had, (R,)."""
    starts = part.block_starts
    counts = np.diff(starts)
    request = np.repeat(np.arange(len(part)), counts)
    place = np.arange(len(part.blocks)) - np.repeat(starts[:-1], counts)
    whole = place < (part.input_tokens // part.block_tokens)[request]
    tokens: Floats = np.bincount(request[seen & whole], minlength=len(part)) * np.float64(
        part.block_tokens
    )
    return tokens
