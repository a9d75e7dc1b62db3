"""One step's mixture layers on host and devices at the same time.

Shapes: T tokens, M model width, K experts per token, L mixture layers that the host shares.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inlay.core.model_shape import Activation
from inlay.models.expert_stream import ExpertStream
from inlay.models.hand_over import HandOverLine, Residents
from inlay.models.ops import Array, ExpertAdapter, Experts, Ops


@dataclass(frozen=True)
class HostStep:
    """One step.

    Attributes:
        line: on which the host is asked; None: it has no part in this step.
        streamed: places of layers whose host experts come to their device for tokens of prompts.
        streams: what brings them, by device.
        prompt_T: these tokens; the line has the others.
    """

    line: HandOverLine | None
    places: dict[int, int]
    residents_L: Sequence[Residents | None]
    streamed: frozenset[int]
    streams: Mapping[str, ExpertStream]
    prompt_T: NDArray[np.bool_]

    def has(self, mixture: int) -> bool:
        """Whether the host shares a layer."""
        return mixture in self.places

    def mix(
        self,
        ops: Ops,
        mixture: int,
        x_TM: Array,
        ids_TK: Array,
        routing_TK: Array,
        out_TM: Array,
        *,
        activation: Activation,
        shared: Experts | None,
        adapters: Sequence[tuple[ExpertAdapter | None, ExpertAdapter | None, int, int]] = (),
    ) -> None:
        """As `Ops.moe`, host and device at the same time. `adapters`: of what the device computes;
        the line has those of the host's.
        """
        place = self.places[mixture]
        streams = place in self.streamed
        if self.line is not None:
            asked_TK = ops.mask_rows(ids_TK, ~self.prompt_T) if streams else ids_TK
            ops.ask(self.line, place, x_TM, asked_TK, routing_TK)
        residents = self.residents_L[place]
        if residents is not None or shared is not None:
            ops.moe(
                x_TM,
                residents,
                ids_TK,
                routing_TK,
                out_TM,
                activation=activation,
                shared=shared,
                adapters=adapters,
            )
        if streams:
            brought_TK = ids_TK if self.line is None else ops.mask_rows(ids_TK, self.prompt_T)
            for experts in self.streams[ops.device].groups(place):
                ops.moe(
                    x_TM,
                    experts,
                    brought_TK,
                    routing_TK,
                    out_TM,
                    activation=activation,
                    shared=None,
                    adapters=adapters,
                )
        if self.line is not None:
            ops.add_answer(self.line, place, out_TM)
