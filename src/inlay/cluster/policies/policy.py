"""What a policy is, and what all of them compute.

Shapes: `S` slots.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.decision import NOWHERE, Columns, Copy, Decision, Refusal, RequestView, Terms
from inlay.cluster.slots import Floats
from inlay.cluster.state import ClusterState, level_of

Blocks = NDArray[np.int32]

_COPY_STEPS = 2.0
_NOBODY = Refusal(reason="no instance takes requests", retry_after_s=1.0)


class Policy(ABC):
    """Chooses instances for requests.

    Pure: what it knows of the world are its arguments. It may remember its own decisions, and draws
    from a generator that it was given, so that the same calls give the same answers.
    """

    name: ClassVar[str]

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
        return self._choose(request, reusable(request, matches_S, state), state, now_s)

    def sent(  # noqa: B027 - most remember nothing
        self, request: RequestView, decision: Decision, now_s: float
    ) -> None:
        """A request was sent where a decision of this policy says; some remember it."""

    @abstractmethod
    def _choose(
        self, request: RequestView, blocks_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        """Decide where somebody takes prompts; `blocks_S`: those that need not be computed."""


def reusable(request: RequestView, matches_S: Blocks, state: ClusterState) -> Blocks:
    """Blocks that each slot need not compute; the last token is always computed."""
    if len(matches_S) != state.num_slots:
        fitted_S = np.zeros(state.num_slots, np.int32)
        shared = min(len(matches_S), state.num_slots)
        fitted_S[:shared] = matches_S[:shared]
        matches_S = fitted_S
    return np.minimum(matches_S, reusable_blocks(request, state))


def reusable_blocks(request: RequestView, state: ClusterState) -> int:
    """Blocks of a prompt that need not be computed if they are there: its last token always is."""
    return (request.num_tokens - 1) // state.page_tokens


def work_s(request: RequestView, blocks_S: Blocks, state: ClusterState) -> Floats:
    """Predicted time to compute the prompt behind so many blocks, at each slot.

    Where the store has more of them, an instance loads them if that is sooner.
    """
    computing_S = _compute_s(request, blocks_S, state)
    if not request.store_blocks:
        return computing_S
    there_S = np.maximum(blocks_S, min(request.store_blocks, reusable_blocks(request, state)))
    loading_S = (there_S - blocks_S) * state.load_block_s
    loading_S += state.find_s
    loading_S += _compute_s(request, there_S, state)
    return np.minimum(computing_S, loading_S, out=computing_S)


def _compute_s(request: RequestView, blocks_S: Blocks, state: ClusterState) -> Floats:
    num_tokens = float(request.num_tokens)
    known_S = blocks_S * float(state.page_tokens)
    work_S: Floats = state.half_pair_s * (known_S + num_tokens)
    work_S += state.token_s
    np.subtract(num_tokens, known_S, out=known_S)
    work_S *= known_S
    work_S += state.base_s
    return work_S


def work_same_s(request: RequestView, num_blocks: int, state: ClusterState) -> Floats:
    """`work_s` where every slot has the same blocks; a new array."""
    known = num_blocks * state.page_tokens
    num_new = request.num_tokens - known
    work_S: Floats = state.token_s * num_new
    work_S += state.half_pair_s * (num_new * (request.num_tokens + known))
    work_S += state.base_s
    return work_S


def decode_cost_s(request: RequestView, blocks_S: Blocks, state: ClusterState) -> Floats:
    """Of a request that is computed elsewhere: how much later it would be finished at each slot.

    That is the time of its decode steps, and of those that it waits for where rows or pages are
    short. Infinite where it may not go.
    """
    outputs = min(state.outputs, request.max_output_tokens)
    rows_S = state.rows + state.coming_rows
    tokens_S = state.context_tokens + state.coming_tokens
    step_S = state.tbt_s(rows_S + 1.0, tokens_S + request.num_tokens)
    need_S = (request.num_tokens + outputs) / state.page_tokens - blocks_S
    room_S = state.pages_free + state.pages_cached - state.coming_pages - need_S
    over_S = np.maximum(rows_S + 1.0 - state.max_rows, 0.0)
    # A row, or the pages of one, come free when a request ends.
    over_S += np.maximum(-room_S, 0.0) / np.maximum(need_S, 1.0)
    cost_S: Floats = step_S * outputs * (1.0 + over_S) + state.closed_decode_s
    return cost_S


def send_s(slot: int, num_blocks: float, state: ClusterState) -> float:
    """Expected time to send blocks from a slot, behind what it has to send."""
    size_bytes = num_blocks * state.page_bytes
    return state.transfer(slot).seconds(size_bytes, float(state.sending_bytes[slot]))


def copy_s(source: int, num_blocks: float, state: ClusterState) -> float:
    """Expected time until blocks that another instance asks for are there.

    Both look at it between two steps only: the one that asks, the one that sends, and at the end
    the first again, each half through a step on average that has parts of one or two prompts.
    """
    step_s = state.step_s.item(source) + state.chunk_s.item(source)
    return _COPY_STEPS * step_s + send_s(source, num_blocks, state)


def decide(
    policy: Policy,
    request: RequestView,
    slot: int,
    blocks_S: Blocks,
    state: ClusterState,
    now_s: float,
    columns: Columns,
    *,
    copy: Copy | None = None,
    replicate: Copy | None = None,
    decode: int = NOWHERE,
    held_blocks: int = 0,
) -> Decision:
    """The decision for a prefill at `slot`, with what is to be expected of it.

    Where a request would decode elsewhere, on an instance that has all of its prompt, it is not
    divided.

    Args:
        blocks_S: reusable blocks.
        columns: what was compared, `cost` among it.
        decode: where to decode if the slot only computes prompts; chosen here if `NOWHERE`.
        held_blocks: of the decision, for `Policy.sent`.
    """
    if not state.splits[slot]:
        decode = slot
    elif decode == NOWHERE:
        decode = int(decode_cost_s(request, blocks_S, state).argmin())
    num_tokens = request.num_tokens
    if decode != slot and blocks_S[decode] >= (num_tokens - 1) // state.page_tokens > 0:
        slot, copy = decode, None
    num_blocks, loaded = int(blocks_S[slot]), 0
    copying = 0.0
    if copy is not None:
        num_blocks = copy.first_block + copy.num_blocks
        copying = copy_s(copy.source, copy.num_blocks, state)
    work = _compute_at_s(slot, num_tokens, num_blocks, state)
    more = min(request.store_blocks, reusable_blocks(request, state)) - num_blocks
    if copy is None and more > 0:
        load_s = state.find_s.item(slot) + more * state.load_block_s.item(slot)
        sooner = load_s + _compute_at_s(slot, num_tokens, num_blocks + more, state)
        if sooner < work:
            work, num_blocks, loaded = sooner, num_blocks + more, more
    wait = max(0.0, state.free_at_s.item(level_of(request.priority), slot) - now_s)
    # Blocks come while others are computed.
    ttft_s = max(wait, copying) + work
    rows = state.rows.item(decode) + state.coming_rows.item(decode) + 1.0
    tokens = state.context_tokens.item(decode) + state.coming_tokens.item(decode) + num_tokens
    tbt_s = state.tbt_at_s(decode, rows, tokens)
    if decode != slot:
        moved = num_tokens / state.page_tokens - int(blocks_S[decode])
        # It streams behind the computing: what is seen of it is what lasts longer, and the end.
        send = send_s(slot, moved, state)
        ttft_s += max(state.transfer(slot).latency_s, send - work) + tbt_s
    return Decision(
        policy=policy.name,
        prefill=slot,
        decode=decode,
        reused_blocks=num_blocks,
        loaded_blocks=loaded,
        held_blocks=held_blocks,
        copy=copy,
        replicate=replicate,
        ttft_s=ttft_s,
        tbt_s=tbt_s,
        wait_s=wait,
        work_s=work,
        terms=Terms(columns),
    )


def _compute_at_s(slot: int, num_tokens: int, num_blocks: int, state: ClusterState) -> float:
    known = num_blocks * state.page_tokens
    rate_s = state.token_s.item(slot) + state.half_pair_s.item(slot) * (num_tokens + known)
    return state.base_s.item(slot) + (num_tokens - known) * rate_s
