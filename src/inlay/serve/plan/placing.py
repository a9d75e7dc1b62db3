"""Where a model's parts come to lie on a machine: as a user's rules say it, or else by cost."""

from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.errors import ResourceError
from inlay.core.hardware import Machine
from inlay.core.model_shape import ModelShape
from inlay.core.offload import STEP_TOKENS, Offload, longest_context, place
from inlay.core.placed_offload import offload_of
from inlay.core.placement import Placement
from inlay.core.roofline import Part


@dataclass(frozen=True, kw_only=True)
class Placing:
    """How parts are placed; `placement` is what rules say, None: by cost."""

    shape: ModelShape
    machine: Machine
    placement: Placement | None = None

    def offload(
        self, parts: Sequence[Part], kv_tokens: int, step_tokens: int = STEP_TOKENS
    ) -> Offload:
        """Where everything lies. Raises ResourceError: it does not fit."""
        if self.placement is None:
            return place(
                self.shape, parts, self.machine, kv_tokens=kv_tokens, step_tokens=step_tokens
            )
        return offload_of(
            self.shape,
            parts,
            self.machine,
            self.placement,
            kv_tokens=kv_tokens,
            step_tokens=step_tokens,
        )

    def offload_requests(
        self, parts: Sequence[Part], context_tokens: int, requests: int
    ) -> Offload | None:
        """None without room, also where layers would leave the GPU that stay there for one."""
        try:
            one, many = (self.offload(parts, context_tokens * count) for count in (1, requests))
        except ResourceError:
            return None
        return many if many.gpu_layers == one.gpu_layers else None

    def longest_context(self, parts: Sequence[Part], most_tokens: int) -> int:
        """Up to `most_tokens`; 0 if the weights alone do not fit."""
        return longest_context(lambda tokens: self.offload(parts, tokens), most_tokens)
