"""What is known of instances in numbers, as arrays over slots. Pure: no clock, no I/O.

All of them are rows of one matrix, whose memory is Python's; `native/cluster/state.h` has the same
rows in the same order.

Shapes: `S` slots, `L` levels of priority, `C` rows.
"""

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.transfer_model import TransferModel

Floats = NDArray[np.float64]

NUM_LEVELS = 3
WORK_MEMORY_S = 10.0
"""Over which `recent_work_s` is a decaying sum."""
WORST_TENTH = 1.75
"""The mean of the worst tenth of steps, in standard deviations above the mean."""

_LEVELLED = ("free_at_s", "_left_s")
_NAMES = (
    "base_s", "token_s", "half_pair_s", "relative_std", "step_s", "next_step_s", "row_s",
    "context_s", "chunk_s", "rows", "context_tokens", "recent_work_s", "closed_prefill_s",
    "closed_decode_s", "closed_short_s", "chunk", "free_at_s", "coming_rows", "coming_tokens",
    "max_rows", "pages_free", "pages_cached", "pages_total", "coming_pages", "sending_bytes",
    "find_s", "load_block_s", "link_latency_s", "link_bandwidth", "_link_std", "_link_bytes",
    "_link_s", "_left_s", "_foreign_s", "_end_sum_s", "_reach_sum_s", "_own_rows",
)  # fmt: skip
NUM_NUMBERS = len(_NAMES) + len(_LEVELLED) * (NUM_LEVELS - 1)
"""Rows of the matrix."""


class SlotNumbers:
    """All arrays are (S,), but for those that are (L, S).

    Attributes:
        base_s, token_s, half_pair_s: computing `n - r` tokens behind `r` known ones takes
            `base_s + (n - r) * (token_s + half_pair_s * (n + r))`, with what decodes there now.
        relative_std: of what a sum of steps takes.
        step_s, next_step_s: a decode step with what decodes there now, and with one more row.
        row_s, context_s: what one more row, and one more token of context, add to it.
        chunk_s: what a part of a prompt, as they are sent there, adds to it.
        rows, context_tokens: what decodes there.
        recent_work_s: predicted work sent there, as a sum that decays over `WORK_MEMORY_S`.
        closed_prefill_s, closed_decode_s: 0 where a phase may be put, infinite elsewhere: added to
            a cost, it leaves only candidates. Where no instance has a role, all others take its
            part.
        closed_short_s: as `closed_prefill_s` for prompts with at most `chunk` tokens to compute;
            instances that decode take them, too.
        chunk: most prompt tokens of one request in a step.
        free_at_s: (L, S), when what is queued at this level and before it will be computed.
        coming_rows, coming_tokens: what was sent there to decode and has not begun.
        max_rows: limit of `rows`.
        pages_free, pages_cached, pages_total: as reported.
        coming_pages: of them, wanted by requests that the report cannot have counted.
        sending_bytes: KV that a slot has still to send.
        find_s, load_block_s: to ask the store about a prompt, and to load a block from it, as
            reported; longer than anything where a slot has no store.
        link_latency_s, link_bandwidth: of what a slot sends; see `TransferModel`.
    """

    base_s: Floats
    token_s: Floats
    half_pair_s: Floats
    relative_std: Floats
    step_s: Floats
    next_step_s: Floats
    row_s: Floats
    context_s: Floats
    chunk_s: Floats
    rows: Floats
    context_tokens: Floats
    recent_work_s: Floats
    closed_prefill_s: Floats
    closed_decode_s: Floats
    closed_short_s: Floats
    chunk: Floats
    free_at_s: Floats
    coming_rows: Floats
    coming_tokens: Floats
    max_rows: Floats
    pages_free: Floats
    pages_cached: Floats
    pages_total: Floats
    coming_pages: Floats
    sending_bytes: Floats
    find_s: Floats
    load_block_s: Floats
    link_latency_s: Floats
    link_bandwidth: Floats
    # Of what is learned of a link: standard deviation, and sums of bytes and seconds.
    _link_std: Floats
    _link_bytes: Floats
    _link_s: Floats
    # Of own requests: seconds of work not done (L, S), sums of the times at which those that decode
    # end and those that come begin, and how many of the first there are.
    _left_s: Floats
    _foreign_s: Floats
    _end_sum_s: Floats
    _reach_sum_s: Floats
    _own_rows: Floats

    def tbt_s(self, rows: Floats, context_tokens: Floats) -> Floats:
        """Mean of the worst tenth of gaps where so much decodes, the new request included.

        Where prompts are computed, too, the worst steps are those that have a part of one.
        """
        mixed = np.minimum(self.recent_work_s * (10.0 / WORK_MEMORY_S), 1.0)
        extra_rows, extra_tokens = rows - self.rows, context_tokens - self.context_tokens
        step_s: Floats = self.step_s + self.row_s * extra_rows + self.context_s * extra_tokens
        step_s += mixed * self.chunk_s
        step_s *= self.relative_std * WORST_TENTH + 1.0
        return step_s

    def _link(self, slot: int) -> TransferModel:
        """What is known now of what a slot sends."""
        return TransferModel(
            latency_s=self.link_latency_s.item(slot),
            bandwidth=self.link_bandwidth.item(slot),
            relative_std=self._link_std.item(slot),
            sums=(self._link_bytes.item(slot), self._link_s.item(slot)),
        )

    def _set_link(self, slot: int, link: TransferModel) -> None:
        self.link_latency_s[slot], self.link_bandwidth[slot] = link.latency_s, link.bandwidth
        self._link_std[slot] = link.relative_std
        self._link_bytes[slot], self._link_s[slot] = link.sums

    def _lie_in(self, numbers_CS: Floats) -> None:
        """The arrays are rows of this matrix from now on."""
        row = 0
        for name in _NAMES:
            if name in _LEVELLED:
                setattr(self, name, numbers_CS[row : row + NUM_LEVELS])
                row += NUM_LEVELS
            else:
                setattr(self, name, numbers_CS[row])
                row += 1

    def _arrays(self) -> list[Floats]:
        return [getattr(self, name) for name in _NAMES]


def level_of(priority: int) -> int:
    """The queue of a priority: 0 urgent, 1 normal, 2 best effort."""
    return 1 if priority == 0 else 0 if priority < 0 else 2
