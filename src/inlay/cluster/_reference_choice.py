"""What policies compute for each instance, in NumPy: serves where there is no extension, and is the
tests' model.

Each sum is made in the same order as in `native/cluster/choice.cpp`, so that both choose alike to
the last bit.

Shapes: `S` slots.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.slot_numbers import WORK_MEMORY_S, WORST_TENTH, Floats, SlotNumbers, level_of

_COPY_STEPS = 2.0
_ROW_S = 1e-6  # only to choose among empty queues
_NOWHERE = -1

Answer = tuple[Any, ...]
"""The fields of `policies.policy.Choice`."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A request: what of it policies look at.

    Attributes:
        reusable: blocks that need not be computed if they are there: its last token always is.
        blocks_S: of them, those that each slot has.
    """

    num_tokens: int
    outputs: float
    level: int
    store_blocks: int
    gap_s: float
    reusable: int
    blocks_S: NDArray[np.int32]
    now_s: float

    @property
    def source(self) -> int:
        """Who has most blocks."""
        return int(self.blocks_S.argmax())


class Choices(SlotNumbers):
    """The choices that the core of the state makes; `State` keeps the numbers up to date."""

    outputs: float

    def __init__(self, page_tokens: int, page_bytes: int) -> None:
        self._page_tokens, self._page_bytes = page_tokens, page_bytes

    def lowest(
        self,
        num_tokens: int,
        max_output_tokens: int,
        priority: int,
        store_blocks: int,
        gap_s: float,
        matches: NDArray[np.int32],
        now_s: float,
        cost: Floats,
    ) -> Answer:
        """The lowest of costs that somebody else made."""
        asked = self._asked(
            num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, now_s
        )
        return self._decide(asked, int(cost.argmin()), [cost])

    def least_loaded(
        self,
        num_tokens: int,
        max_output_tokens: int,
        priority: int,
        store_blocks: int,
        gap_s: float,
        matches: NDArray[np.int32],
        now_s: float,
    ) -> Answer:
        """See `policies.least_loaded`."""
        asked = self._asked(
            num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, now_s
        )
        wait_S = self._wait_s(asked, 0.0)
        cost_S = wait_S + (self.rows + self.coming_rows) * _ROW_S + self.closed_prefill_s
        return self._decide(asked, int(cost_S.argmin()), [cost_S, wait_S])

    def local_cache_aware(
        self,
        num_tokens: int,
        max_output_tokens: int,
        priority: int,
        store_blocks: int,
        gap_s: float,
        matches: NDArray[np.int32],
        now_s: float,
    ) -> Answer:
        """See `policies.local_cache_aware`."""
        asked = self._asked(
            num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, now_s
        )
        wait_S = self._wait_s(asked, 0.0)
        work_S = self._work_s(asked, asked.blocks_S)
        cost_S = wait_S + work_S + self.closed_prefill_s
        return self._decide(asked, int(cost_S.argmin()), [cost_S, asked.blocks_S, wait_S, work_S])

    def kv_centric(
        self,
        num_tokens: int,
        max_output_tokens: int,
        priority: int,
        store_blocks: int,
        gap_s: float,
        matches: NDArray[np.int32],
        now_s: float,
        copies: bool,
        threshold: float,
    ) -> Answer:
        """See `policies.kv_centric`."""
        asked = self._asked(
            num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, now_s
        )
        blocks_S, source = asked.blocks_S, asked.source
        best = int(blocks_S[source])
        wait_S = self._wait_s(asked, 0.0)
        if best and copies:
            missing_S = best - blocks_S
            copied_S = np.where(best > threshold * blocks_S, missing_S, 0).astype(np.int32)
            first_s = self._copy_s(source, 0)
            block_s = self._copy_s(source, 1) - first_s
            copy_S = np.where(copied_S > 0, first_s + copied_S * block_s, 0.0)
        else:  # nobody has any, and in that slot there may be nobody at all
            copied_S, copy_S = np.zeros_like(blocks_S), np.zeros(len(blocks_S))
        work_S = self._work_s(asked, blocks_S + copied_S)
        cost_S = copy_S + wait_S + work_S + self.closed_prefill_s
        slot = int(cost_S.argmin())
        copied = int(copied_S[slot])
        columns = [cost_S, blocks_S, copied_S, copy_S, wait_S, work_S]
        return self._decide(asked, slot, columns, copy=(source, best - copied, copied))

    def inlay(
        self,
        num_tokens: int,
        max_output_tokens: int,
        priority: int,
        store_blocks: int,
        gap_s: float,
        matches: NDArray[np.int32],
        now_s: float,
        caution: float,
        later: float,
        eviction: float,
        max_pressure: float,
        displaced: float,
    ) -> Answer:
        """See `policies.inlay`."""
        asked = self._asked(
            num_tokens, max_output_tokens, priority, store_blocks, gap_s, matches, now_s
        )
        work_S = self._work_s(asked, asked.blocks_S)
        late_S = self.relative_std * caution
        late_S += 1.0
        # Infinite from here on where the request may not go.
        wait_S = self._wait_s(asked, self._closed_s(asked, work_S, late_S))
        # How many such prompts wait even in the shortest queue: so many more will wait for this.
        shortest_s, alone_s = wait_S.item(wait_S.argmin()), work_S.item(asked.source)
        pressure = max_pressure if shortest_s > 0 else 0.0
        if alone_s > 0:
            pressure = min(shortest_s / alone_s, max_pressure)
        # What each second of computing takes from the request and from others.
        weight_S = self.rows * later
        weight_S += 1.0 + pressure
        prompt_S = weight_S * work_S
        prompt_S += wait_S
        prompt_S *= late_S
        decode_S = self.context_s * num_tokens
        decode_S += self.next_step_s
        decode_S *= asked.outputs * later
        decode, splits_S = _NOWHERE, self._splits()
        if splits_S.any():
            there_S = self._decode_cost_s(asked)
            decode = int(there_S.argmin())
            np.copyto(decode_S, there_S[decode] * later, where=splits_S)
        cost_S = prompt_S + decode_S
        columns = [cost_S, asked.blocks_S, wait_S, work_S, late_S, weight_S, prompt_S, decode_S]
        short_S = self.pages_free < num_tokens / self._page_tokens
        if short_S.any():
            # The blocks that a slot has not will displace others.
            lost_S = work_S * (eviction * displaced * (1.0 + pressure))
            lost_S *= short_S
            cost_S += lost_S
            columns.append(lost_S)
        return self._decide(asked, int(cost_S.argmin()), columns, decode=decode)

    def _asked(
        self,
        num_tokens: int,
        max_output_tokens: int,
        priority: int,
        store_blocks: int,
        gap_s: float,
        matches_S: NDArray[np.int32],
        now_s: float,
    ) -> _Asked:
        fitted_S = np.zeros(len(self.rows), np.int32)
        shared = min(len(matches_S), len(fitted_S))
        fitted_S[:shared] = matches_S[:shared]
        reusable = (num_tokens - 1) // self._page_tokens
        return _Asked(
            num_tokens=num_tokens,
            outputs=min(self.outputs, max_output_tokens),
            level=level_of(priority),
            store_blocks=store_blocks,
            gap_s=gap_s,
            reusable=reusable,
            blocks_S=np.minimum(fitted_S, reusable),
            now_s=now_s,
        )

    def _splits(self) -> NDArray[np.bool_]:
        splits_S: NDArray[np.bool_] = (self.closed_short_s == 0) & (self.closed_decode_s != 0)
        return splits_S

    def _wait_s(self, asked: _Asked, least_s: Floats | float) -> Floats:
        wait_S: Floats = self.free_at_s[asked.level] - asked.now_s
        return np.maximum(wait_S, least_s, out=wait_S)

    def _work_s(self, asked: _Asked, blocks_S: NDArray[np.int32]) -> Floats:
        """Predicted time to compute the prompt behind so many blocks, at each slot.

        Where the store has more of them, an instance loads them if that is sooner.
        """
        computing_S = self._compute_s(asked, blocks_S)
        if not asked.store_blocks:
            return computing_S
        there_S = np.maximum(blocks_S, min(asked.store_blocks, asked.reusable))
        loading_S = (there_S - blocks_S) * self.load_block_s
        loading_S += self.find_s
        loading_S += self._compute_s(asked, there_S)
        return np.minimum(computing_S, loading_S, out=computing_S)

    def _compute_s(self, asked: _Asked, blocks_S: NDArray[np.int32]) -> Floats:
        num_tokens = float(asked.num_tokens)
        known_S = blocks_S * float(self._page_tokens)
        work_S: Floats = self.half_pair_s * (known_S + num_tokens)
        work_S += self.token_s
        np.subtract(num_tokens, known_S, out=known_S)
        work_S *= known_S
        work_S += self.base_s
        return work_S

    def _closed_s(self, asked: _Asked, work_S: Floats, late_S: Floats) -> Floats:
        """0 where a prompt may go, infinite elsewhere: its rest is long for who decodes."""
        if np.array_equal(self.closed_prefill_s, self.closed_short_s):
            return self.closed_prefill_s
        long_S = asked.num_tokens - asked.blocks_S * self._page_tokens > self.chunk
        # All that decode there wait for the step that computes it.
        if asked.gap_s < np.inf:
            long_S |= work_S * late_S > asked.gap_s
        return np.where(long_S, self.closed_prefill_s, self.closed_short_s)

    def _decode_cost_s(self, asked: _Asked) -> Floats:
        """Of a request that is computed elsewhere: how much later it would be finished there.

        That is the time of its decode steps, and of those that it waits for where rows or pages are
        short. Infinite where it may not go.
        """
        rows_S = self.rows + self.coming_rows
        tokens_S = self.context_tokens + self.coming_tokens
        step_S = self.tbt_s(rows_S + 1.0, tokens_S + asked.num_tokens)
        need_S = (asked.num_tokens + asked.outputs) / self._page_tokens - asked.blocks_S
        room_S = self.pages_free + self.pages_cached - self.coming_pages - need_S
        over_S = np.maximum(rows_S + 1.0 - self.max_rows, 0.0)
        # A row, or the pages of one, come free when a request ends.
        over_S += np.maximum(-room_S, 0.0) / np.maximum(need_S, 1.0)
        cost_S: Floats = step_S * asked.outputs * (1.0 + over_S) + self.closed_decode_s
        return cost_S

    def _send_s(self, slot: int, num_blocks: float) -> float:
        """Expected time to send blocks from a slot, behind what it has to send."""
        size_bytes = num_blocks * self._page_bytes
        return self._link(slot).seconds(size_bytes, float(self.sending_bytes[slot]))

    def _copy_s(self, source: int, num_blocks: float) -> float:
        """Expected time until blocks that another instance asks for are there.

        Both look at it between two steps only: the one that asks, the one that sends, and at the
        end the first again, each half through a step on average that has parts of one or two
        prompts.
        """
        step_s = self.step_s.item(source) + self.chunk_s.item(source)
        return _COPY_STEPS * step_s + self._send_s(source, num_blocks)

    def _compute_at_s(self, slot: int, num_tokens: int, num_blocks: int) -> float:
        known = num_blocks * self._page_tokens
        rate_s = self.token_s.item(slot) + self.half_pair_s.item(slot) * (num_tokens + known)
        return self.base_s.item(slot) + (num_tokens - known) * rate_s

    def _decide(
        self,
        asked: _Asked,
        slot: int,
        columns: list[Any],
        copy: tuple[int, int, int] = (0, 0, 0),
        decode: int = _NOWHERE,
    ) -> Answer:
        """What is to be expected of a prefill at `slot`.

        Where a request would decode elsewhere, on an instance that has all of its prompt, it is not
        divided.
        """
        blocks_S, num_tokens = asked.blocks_S, asked.num_tokens
        if not self._splits()[slot]:
            decode = slot
        elif decode == _NOWHERE:
            decode = int(self._decode_cost_s(asked).argmin())
        if decode != slot and blocks_S[decode] >= asked.reusable > 0:
            slot, copy = decode, (0, 0, 0)
        num_blocks, loaded = int(blocks_S[slot]), 0
        copying = 0.0
        if copy[2]:
            num_blocks = copy[1] + copy[2]
            copying = self._copy_s(copy[0], copy[2])
        work = self._compute_at_s(slot, num_tokens, num_blocks)
        more = min(asked.store_blocks, asked.reusable) - num_blocks
        if not copy[2] and more > 0:
            load_s = self.find_s.item(slot) + more * self.load_block_s.item(slot)
            sooner = load_s + self._compute_at_s(slot, num_tokens, num_blocks + more)
            if sooner < work:
                work, num_blocks, loaded = sooner, num_blocks + more, more
        wait = max(0.0, self.free_at_s.item(asked.level, slot) - asked.now_s)
        # Blocks come while others are computed.
        ttft_s = max(wait, copying) + work
        rows = self.rows.item(decode) + self.coming_rows.item(decode) + 1.0
        tokens = self.context_tokens.item(decode) + self.coming_tokens.item(decode) + num_tokens
        tbt_s = self.tbt_at_s(decode, rows, tokens)
        if decode != slot:
            moved = num_tokens / self._page_tokens - int(blocks_S[decode])
            # It streams behind the computing: what is seen of it is what lasts longer, and the end.
            send = self._send_s(slot, moved)
            ttft_s += max(self.link_latency_s.item(slot), send - work) + tbt_s
        held = int(blocks_S[asked.source])
        return (
            slot, decode, num_blocks, loaded, asked.source, held, *copy, ttft_s, tbt_s, wait, work,
            np.array(columns, np.float64),
        )  # fmt: skip

    def tbt_at_s(self, slot: int, rows: float, context_tokens: float) -> float:
        """`tbt_s` of one slot."""
        mixed = min(self.recent_work_s.item(slot) * (10.0 / WORK_MEMORY_S), 1.0)
        step_s = self.step_s.item(slot) + mixed * self.chunk_s.item(slot)
        step_s += self.row_s.item(slot) * (rows - self.rows.item(slot))
        step_s += self.context_s.item(slot) * (context_tokens - self.context_tokens.item(slot))
        return step_s * (1.0 + WORST_TENTH * self.relative_std.item(slot))
