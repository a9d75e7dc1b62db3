"""The core of the cluster state in plain Python: serves where there is no extension, and is the
tests' model.

`inlay._native.cluster.State` has the same methods and gives the same numbers.
"""

import math
from dataclasses import astuple, dataclass, field
from typing import Any

from inlay.cluster._reference_choice import Choices
from inlay.cluster._reference_timing import Timing
from inlay.cluster.live import LiveRequest
from inlay.cluster.slot_numbers import NUM_LEVELS, WORK_MEMORY_S, Floats, level_of
from inlay.core.errors import ArgumentError

_NORMAL = 1
_REPORT_LAG_S = 0.02  # what was sent less than that before a report came is taken not to be in it
_OUTPUTS_GUESS = 200.0  # tokens of an output, before any was seen
_SOON_S = 1e-3
_NEVER_S = 1e9


@dataclass(kw_only=True, eq=False)
class _Slot:
    """What a slot has besides numbers in arrays.

    Attributes:
        timing: of instances of its kind.
        chunk: most prompt tokens of one request in a step.
        position: mean position of the tokens that were sent there to compute.
        part: mean number of tokens of a step's part of a prompt; infinite before the first one.
        here: requests, in the order in which they were sent.
        coming: of them, those whose prompt is not known to be computed.
        seconds: the coefficients that the numbers were made of.
    """

    timing: Timing
    chunk: int
    position: float = 0.0
    part: float = math.inf
    here: dict[str, LiveRequest] = field(default_factory=dict)
    coming: dict[str, LiveRequest] = field(default_factory=dict)
    seconds: list[float] | None = None


class State(Choices):
    """Numbers of slots, over memory that `bind` tells of, and the requests that are at them."""

    def __init__(self, page_tokens: int, page_bytes: int) -> None:
        super().__init__(page_tokens, page_bytes)
        self.outputs = _OUTPUTS_GUESS
        self._num_outputs = 1  # the guess
        self._worked_s = 0.0  # time to which recent_work_s has decayed
        self._slots: dict[int, _Slot] = {}
        self._live: dict[str, LiveRequest] = {}

    def bind(self, numbers: Floats) -> None:
        """The numbers lie there from now on."""
        self._lie_in(numbers)

    def join(self, slot: int, timing: Timing, chunk: int) -> None:
        """Somebody is in a slot."""
        self._slots[slot] = _Slot(timing=timing, chunk=chunk)
        self._refresh(slot)

    def leave(self, slot: int) -> list[str]:
        """Nobody is there any more; returns the ids of requests that were."""
        self._slot(slot)
        lost = [one.request_id for one in self._live.values() if slot in (one.prefill, one.decode)]
        for request_id in lost:
            self.finished(request_id, None)
        del self._slots[slot]
        return lost

    def report(
        self,
        slot: int,
        waiting: int,
        running: int,
        receiving: int,
        prefill_tokens: int,
        context_tokens: int,
        pages_total: int,
        pages_free: int,
        pages_cached: int,
        find_s: float | None,
        load_block_s: float | None,
        samples: list[tuple[int, int, int, int, float]],
        now_s: float,
    ) -> None:
        """An instance says how loaded it is; samples as `Timing.observe` takes them."""
        one = self._slot(slot)
        self.elapse(now_s)  # here, too: what is said of a busy past must not keep requests away
        if samples:
            one.timing.observe(samples)
        self.pages_free[slot] = pages_free
        self.pages_cached[slot] = pages_cached
        self.pages_total[slot] = pages_total
        self.find_s[slot] = _NEVER_S if find_s is None else find_s
        self.load_block_s[slot] = _NEVER_S if load_block_s is None else load_block_s
        rows = samples[-1][2] if samples else running
        self.rows[slot] = rows if context_tokens else 0
        self.context_tokens[slot] = context_tokens
        self._refresh(slot)
        unseen = _unseen(one, waiting + running + receiving, now_s)
        self._reconcile_queue(slot, one, prefill_tokens, unseen, now_s)
        self.coming_pages[slot] = sum(
            live.pages
            for live in one.coming.values()
            if live.decode == slot and (live.prefill == slot or live.request_id in unseen)
        )

    def dispatched(
        self,
        request_id: str,
        prefill: int,
        decode: int,
        priority: int,
        num_tokens: int,
        max_output_tokens: int,
        reused_blocks: int,
        loaded_blocks: int,
        ttft_s: float,
        tbt_s: float,
        work_s: float,
        now_s: float,
    ) -> None:
        """A request was sent; what is known of it from before is forgotten."""
        one = self._slot(prefill)
        self._slot(decode)
        self.finished(request_id, None)
        outputs = min(self.outputs, max_output_tokens)
        blocks = math.ceil((num_tokens + outputs) / self._page_tokens)
        live = LiveRequest(
            request_id=request_id,
            prefill=prefill,
            decode=decode,
            level=level_of(priority),
            num_tokens=num_tokens,
            new_tokens=num_tokens - reused_blocks * self._page_tokens,
            work_s=work_s,
            outputs=outputs,
            pages=blocks - (0 if prefill != decode else reused_blocks - loaded_blocks),
            sent_s=now_s,
            reach_s=now_s + ttft_s,
            end_s=now_s + ttft_s + outputs * tbt_s,
        )
        self._live[request_id] = live
        for slot in {prefill, decode}:
            there = self._slot(slot)
            there.here[request_id] = there.coming[request_id] = live
        one.position += 0.1 * (live.num_tokens - live.new_tokens / 2 - one.position)
        part = min(live.new_tokens, one.chunk)
        one.part = part if math.isinf(one.part) else one.part + 0.1 * (part - one.part)
        for behind in range(live.level, NUM_LEVELS):
            free_at_s = max(self.free_at_s.item(behind, prefill), now_s)
            self.free_at_s[behind, prefill] = free_at_s + live.work_s
            self._left_s[behind, prefill] += live.work_s
        self.elapse(now_s)
        self.recent_work_s[prefill] += live.work_s
        self.coming_rows[decode] += 1
        self.coming_tokens[decode] += live.num_tokens
        self.coming_pages[decode] += live.pages
        self._reach_sum_s[decode] += live.reach_s

    def prefill_done(self, request_id: str, now_s: float) -> None:
        """The first output of a request came."""
        live = self._live.get(request_id)
        if live is None or live.decoding:
            return
        self._end_prefill(live, now_s)
        slot = live.decode
        live.decoding = True
        live.end_s += now_s - live.reach_s
        self.rows[slot] += 1
        self._own_rows[slot] += 1
        self.context_tokens[slot] += live.num_tokens
        self._end_sum_s[slot] += live.end_s
        self._refresh(slot)

    def finished(self, request_id: str, output_tokens: int | None) -> None:
        """A request is over."""
        live = self._live.pop(request_id, None)
        if live is None:
            return
        if output_tokens is not None:
            self._num_outputs += 1
            self.outputs += (output_tokens - self.outputs) * max(0.02, 1 / self._num_outputs)
        for slot in {live.prefill, live.decode}:
            self._slot(slot).here.pop(request_id, None)
        if not live.decoding:
            self._end_prefill(live, None)
            return
        slot = live.decode
        self.rows[slot] = max(0.0, self.rows[slot] - 1)
        self.context_tokens[slot] = max(0.0, self.context_tokens[slot] - live.num_tokens)
        self._own_rows[slot] -= 1
        self._end_sum_s[slot] -= live.end_s
        self._refresh(slot)

    def sending(self, slot: int, size_bytes: float) -> None:
        """A slot began to send so many bytes."""
        self.sending_bytes[slot] += size_bytes

    def sent(self, slot: int, size_bytes: float, seconds: float | None) -> None:
        """It has sent them, in so many seconds; None where it failed."""
        self.sending_bytes[slot] = ahead = max(0.0, self.sending_bytes[slot] - size_bytes)
        if seconds is None:
            return
        self._slot(slot)
        link = self._link(slot)
        link.observe(size_bytes, float(ahead), seconds)
        self._set_link(slot, link)

    def elapse(self, now_s: float) -> None:
        """Time passes: what was sent counts less and less."""
        self.recent_work_s *= math.exp(min(0.0, self._worked_s - now_s) / WORK_MEMORY_S)
        self._worked_s = max(self._worked_s, now_s)

    def load_after(self, slot: int, ahead_s: float, now_s: float) -> tuple[float, float]:
        """Rows and tokens of context that will decode at a slot in `ahead_s` seconds."""
        self._slot(slot)
        gone = begun = 0.0
        if own := float(self._own_rows[slot]):
            # Where they run longer than expected, what is left is no shorter for it.
            least_s = self.outputs * float(self.step_s[slot]) / 2
            gone = _share_by(ahead_s, max(float(self._end_sum_s[slot]) / own - now_s, least_s))
        if coming := float(self.coming_rows[slot]):
            begun = _share_by(ahead_s, float(self._reach_sum_s[slot]) / coming - now_s)
        rows = float(self.rows[slot]) * (1.0 - gone) + coming * begun
        tokens = float(self.context_tokens[slot]) * (1.0 - gone)
        return rows, tokens + float(self.coming_tokens[slot]) * begun

    def live(self) -> list[tuple[Any, ...]]:
        """Requests that were sent and are not finished: the fields of `LiveRequest`, in order."""
        return [astuple(one) for one in self._live.values()]

    def best_effort(self, slot: int) -> list[tuple[Any, ...]]:
        """Those of the lowest level that decode at a slot."""
        here = self._slot(slot).here.values()
        return [astuple(one) for one in here if one.decoding and one.level == NUM_LEVELS - 1]

    def _slot(self, slot: int) -> _Slot:
        one = self._slots.get(slot)
        if one is None:
            raise ArgumentError(f"cluster state: nobody is in slot {slot}")
        return one

    def _reconcile_queue(
        self, slot: int, one: _Slot, prefill_tokens: int, unseen: set[str], now_s: float
    ) -> None:
        """Set the queue to what an instance says it has to compute, and what it does not know of.

        What it says is divided by level as own requests are; what is more than these is normal.
        """
        tokens_L, unseen_L = [0.0] * NUM_LEVELS, [0.0] * NUM_LEVELS
        for live in one.coming.values():
            if live.prefill != slot:
                continue
            if live.request_id in unseen:
                unseen_L[live.level] += live.work_s
            else:
                tokens_L[live.level] += live.new_tokens
        own = sum(tokens_L)
        share = min(1.0, prefill_tokens / own) if own else 0.0
        foreign = max(0.0, prefill_tokens - own)
        rate_s = self.token_s.item(slot) + self.half_pair_s.item(slot) * 2 * one.position
        sum_s = foreign_s = 0.0
        for level in range(NUM_LEVELS):
            if level == _NORMAL:
                foreign_s = foreign * rate_s
                sum_s += foreign_s
            sum_s += tokens_L[level] * share * rate_s + unseen_L[level]
            self.free_at_s[level, slot] = now_s + sum_s
        self._foreign_s[slot] = foreign_s

    def _end_prefill(self, live: LiveRequest, now_s: float | None) -> None:
        """A request's prompt is computed; if `now_s` is None, it is not wanted any more."""
        slot, decode = live.prefill, live.decode
        for at in {slot, decode}:
            self._slot(at).coming.pop(live.request_id, None)
        if slot != decode:
            self._slot(slot).here.pop(live.request_id, None)
        foreign_s = self._foreign_s.item(slot)
        for level in range(NUM_LEVELS):
            own_s = live.work_s if level >= live.level else 0.0
            left_s = max(0.0, self._left_s.item(level, slot) - own_s)
            self._left_s[level, slot] = left_s
            if now_s is None:
                self.free_at_s[level, slot] -= own_s
            else:
                # What the queue was late or early by is settled with the request that left it.
                others_s = foreign_s if level >= _NORMAL else 0.0
                self.free_at_s[level, slot] = now_s + left_s + others_s
        self.coming_rows[decode] = max(0.0, self.coming_rows[decode] - 1)
        self.coming_tokens[decode] -= live.num_tokens
        self.coming_pages[decode] = max(0.0, self.coming_pages[decode] - live.pages)
        self._reach_sum_s[decode] -= live.reach_s

    def _refresh(self, slot: int) -> None:
        """Bring the times of steps up to what decodes there now."""
        one = self._slot(slot)
        c0, c1, c2, d0, d1, d2 = one.timing.coefficients
        if one.seconds is not one.timing.coefficients:  # they changed, or this is the first time
            one.seconds = one.timing.coefficients
            self.half_pair_s[slot] = c2 / 2
            self.relative_std[slot] = one.timing.relative_std
            self.row_s[slot], self.context_s[slot] = d1, d2
        decoding_s = d1 * self.rows.item(slot) + d2 * self.context_tokens.item(slot)
        base_s = c0 + decoding_s
        self.base_s[slot] = base_s
        self.token_s[slot] = c1 + base_s / one.chunk
        self.step_s[slot] = d0 + decoding_s
        self.next_step_s[slot] = d0 + decoding_s + d1
        self.chunk_s[slot] = max(0.0, c0 - d0) + c1 * min(one.part, one.chunk)


def _unseen(one: _Slot, counted: int, now_s: float) -> set[str]:
    """Requests that a report cannot know of: the newest ones.

    Those just sent, and as many as the instance counts fewer than were sent. The first rule holds
    with several dispatchers, the second where the instance was busy for long.
    """
    missing = len(one.here) - counted
    unseen: set[str] = set()
    for live in reversed(one.here.values()):
        if len(unseen) >= missing and live.sent_s < now_s - _REPORT_LAG_S:
            break
        unseen.add(live.request_id)
    return unseen


def _share_by(ahead_s: float, mean_s: float) -> float:
    """Of events that lie evenly around `mean_s` from now, the share that is over by `ahead_s`."""
    return min(max(ahead_s, 0.0) / (2.0 * max(mean_s, _SOON_S)), 1.0)
