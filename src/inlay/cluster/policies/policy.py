"""What a policy is, and how it asks the state's core, which computes what policies compare.

Shapes: `S` slots.
"""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.decision import Copy, Decision, Refusal, RequestView, Terms
from inlay.cluster.state import ClusterState

Blocks = NDArray[np.int32]

_NOBODY = Refusal(reason="no instance takes requests", retry_after_s=1.0)


class Choice(NamedTuple):
    """What the core of the state answers.

    Attributes:
        prefill, decode, reused_blocks, loaded_blocks, ttft_s, tbt_s, wait_s, work_s: of a decision.
        source, held_blocks: the slot that has most blocks, and how many.
        copy_source, copy_first_block, copy_blocks: of the decision's copy; no blocks, no copy.
        values: what was compared, a row for each column of the policy; rows at the end may be
            missing.
    """

    prefill: int
    decode: int
    reused_blocks: int
    loaded_blocks: int
    source: int
    held_blocks: int
    copy_source: int
    copy_first_block: int
    copy_blocks: int
    ttft_s: float
    tbt_s: float
    wait_s: float
    work_s: float
    values: NDArray[np.float64]


class Policy(ABC):
    """Chooses instances for requests.

    Pure: what it knows of the world are its arguments. It may remember its own decisions, and draws
    from a generator that it was given, so that the same calls give the same answers.

    Attributes:
        columns: names of what it compares, `cost` first.
    """

    name: ClassVar[str]
    columns: ClassVar[tuple[str, ...]]

    def choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        """Decide where a request goes.

        Args:
            matches_S: leading blocks that each slot has of it; slots behind its end have none.
            now_s: of the clock of `state`.

        Returns:
            Instances and predicted times, or a refusal where there is no instance. Objectives are
            kept by `Admission`, not here.
        """
        if not state.num_prefill:
            return Decision(policy=self.name, refusal=_NOBODY)
        return self._choose(request, matches_S, state, now_s)

    def sent(  # noqa: B027 - most remember nothing
        self, request: RequestView, decision: Decision, now_s: float
    ) -> None:
        """A request was sent where a decision of this policy says; some remember it."""

    @abstractmethod
    def _choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        """Decide where somebody takes prompts."""

    def _decision(self, answer: Choice, replicate: Copy | None = None) -> Decision:
        """What the core answered, with what it compared."""
        copy = None
        if answer.copy_blocks:
            copy = Copy(
                answer.copy_source, answer.prefill, answer.copy_first_block, answer.copy_blocks
            )
        return Decision(
            policy=self.name,
            prefill=answer.prefill,
            decode=answer.decode,
            reused_blocks=answer.reused_blocks,
            loaded_blocks=answer.loaded_blocks,
            held_blocks=answer.held_blocks,
            copy=copy,
            replicate=replicate,
            ttft_s=answer.ttft_s,
            tbt_s=answer.tbt_s,
            wait_s=answer.wait_s,
            work_s=answer.work_s,
            terms=Terms(self.columns, answer.values),
        )


def asked(request: RequestView, matches_S: Blocks) -> tuple[int, int, int, int, float, Blocks]:
    """What the core has to know of a request."""
    slo = request.slo
    return (
        request.num_tokens,
        request.max_output_tokens,
        request.priority,
        request.store_blocks,
        min(slo.tbt_s, slo.itl_s),
        matches_S,
    )
