"""What a policy is asked and what it answers. Plain data, made a million times in a simulation."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inlay.cluster.slo import SloClass

DIGEST_BYTES = 16
NOWHERE = -1
"""In place of a slot."""


Columns = Mapping[str, NDArray[Any]]
"""Arrays over slots, by name."""


class RequestView(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What policies see of a request.

    Attributes:
        num_tokens: of the prompt, and of the output so far if it was begun elsewhere.
        digests: of its full blocks, `DIGEST_BYTES` each, joined; may be empty.
        max_output_tokens: its limit.
        priority: lower is earlier; above 0 is best effort.
        tenant: on whose account it goes.
        slo: its objectives.
        store_blocks: leading blocks that the store has, from where each instance can load them.
    """

    num_tokens: int
    digests: bytes = b""
    max_output_tokens: int = 1 << 30
    priority: int = 0
    tenant: str = ""
    slo: SloClass = SloClass()
    store_blocks: int = 0


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Blocks of a request's prefix that one instance should get from another.

    Attributes:
        source, target: slots.
        first_block: the target has those before.
        num_blocks: from there on.
    """

    source: int
    target: int
    first_block: int
    num_blocks: int


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why a request is not taken, and when to come back."""

    reason: str
    retry_after_s: float


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What a policy compared: arrays over slots. The lowest `cost` was chosen; infinite: not asked.

    Attributes:
        names: of what was compared, in the order in which to show it; `cost` is the first.
        values: a row for each of the first names: the last may be left out. See `columns`.
    """

    names: tuple[str, ...]
    values: NDArray[np.float64]

    @property
    def columns(self) -> Columns:
        """By name."""
        return dict(zip(self.names, self.values, strict=False))


class Decision(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a request goes, or that it is refused.

    Attributes:
        policy: name of the one who decided.
        prefill, decode: slots; the same where the request is not divided, `NOWHERE` if refused.
        reused_blocks: leading blocks that the prefill instance need not compute, those copied or
            loaded, too.
        loaded_blocks: of these, those that it gets from the store.
        held_blocks: leading blocks that some instance has; 0 where the policy does not say.
        copy: blocks that it needs first from another instance, before computing the rest.
        replicate: blocks worth having in a second place; nobody waits for them.
        preempt: id of a best-effort request to take away from the instance, to be queued again.
        ttft_s, tbt_s: predicted, from now on.
        wait_s, work_s: of `ttft_s`: queue before it, and computing.
        refusal: None if it is taken.
        terms: for `explain`.
    """

    policy: str
    prefill: int = NOWHERE
    decode: int = NOWHERE
    reused_blocks: int = 0
    loaded_blocks: int = 0
    held_blocks: int = 0
    copy: Copy | None = None
    replicate: Copy | None = None
    preempt: str | None = None
    ttft_s: float = 0.0
    tbt_s: float = 0.0
    wait_s: float = 0.0
    work_s: float = 0.0
    refusal: Refusal | None = None
    terms: Terms | None = None

    @property
    def split(self) -> bool:
        """Whether prefill and decode are on different instances."""
        return self.prefill != self.decode


def explain(decision: Decision, names: Sequence[str]) -> list[dict[str, str | float | bool | None]]:
    """Why this instance: one row per candidate, the chosen one first, then the best.

    Args:
        names: of the instances, by slot; empty where there is none.

    Returns:
        `instance`, `chosen`, and the policy's terms (seconds, tokens or blocks, by their names);
        None where a term is infinite. One that only decodes has such a cost, and may be chosen
        since it has all of the prompt.
    """
    if decision.terms is None:
        return []
    columns = decision.terms.columns
    cost = columns["cost"]
    chosen = decision.prefill
    order = [
        slot
        for slot in sorted(range(len(cost)), key=lambda slot: (slot != chosen, cost[slot]))
        if slot == chosen or np.isfinite(cost[slot])
    ]
    return [
        {
            "instance": names[slot] if slot < len(names) else "",
            "chosen": slot == chosen,
            **{
                name: float(column[slot]) if np.isfinite(column[slot]) else None
                for name, column in columns.items()
            },
        }
        for slot in order
    ]
