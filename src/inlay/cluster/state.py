"""What is known of all instances, as arrays over their slots. Pure: no clock, no I/O.

It is made of three sources: what was sent to an instance and is not done (exact, but only of this
dispatcher's requests), what the instance reports (true, but a moment old), and what time has done
since then (predicted). Policies read the arrays; the dispatcher and the simulator call the methods.

Shapes: `S` slots, `L` levels of priority.
"""

import math

import numpy as np

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.live import LiveRequest
from inlay.cluster.slot_times import WORK_MEMORY_S, SlotTimes
from inlay.cluster.slots import Floats, Slot, empty
from inlay.cluster.timing import TimingModel, TransferModel
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import LoadReport, Role

NUM_LEVELS = 3
NORMAL = 1
REPORT_LAG_S = 0.02
"""What was sent less than that before a report came is taken not to be in it."""
_OUTPUTS_GUESS = 200.0  # tokens of an output, before any was seen
_SOON_S = 1e-3
_NEVER_S = 1e9


def level_of(priority: int) -> int:
    """The queue of a priority: 0 urgent, 1 normal, 2 best effort."""
    return NORMAL if priority == 0 else 0 if priority < 0 else 2


class ClusterState(SlotTimes):
    """Instances and their load, by slot. All arrays are (S,) unless it says otherwise.

    Args:
        page_tokens: tokens of a block, the same for all instances.
        page_bytes: of a block's KV, when it moves.
        copies: whether instances give blocks to each other when a `Decision.copy` asks for it.

    Attributes:
        free_at_s: (L, S), when what is queued at this level and before it will be computed.
        coming_rows, coming_tokens: what was sent there to decode and has not begun.
        max_rows: limit of `rows`.
        pages_free, pages_cached, pages_total: as reported.
        coming_pages: of them, wanted by requests that the report cannot have counted.
        sending_bytes: KV that a slot has still to send.
        find_s, load_block_s: to ask the store about a prompt, and to load a block from it, as
            reported; longer than anything where a slot has no store.
        live: requests sent and not finished, by id.
        outputs: mean tokens of an output, over the latest requests.
    """

    def __init__(self, page_tokens: int, page_bytes: int = 0, copies: bool = False) -> None:
        if page_tokens < 1 or page_bytes < 0:
            raise ArgumentError(
                f"cluster state: page_tokens must be >= 1 and page_bytes >= 0, got {page_tokens} "
                f"and {page_bytes}"
            )
        super().__init__()
        self.page_tokens, self.page_bytes, self.copies = page_tokens, page_bytes, copies
        self.live: dict[str, LiveRequest] = {}
        self.outputs = _OUTPUTS_GUESS
        self.free_at_s: Floats = np.zeros((NUM_LEVELS, 0))
        self.coming_rows, self.coming_tokens = empty(), empty()
        self.max_rows = empty()
        self.pages_free, self.pages_cached, self.pages_total = empty(), empty(), empty()
        self.coming_pages = empty()
        self.sending_bytes = empty()
        self.find_s, self.load_block_s = empty(), empty()
        self._worked_s = 0.0  # time to which recent_work_s has decayed
        # Of own requests: seconds of work not done, sums of the times at which those that decode
        # end and those that come begin, and how many of the first there are.
        self._left_s: Floats = np.zeros((NUM_LEVELS, 0))
        self._foreign_s = empty()
        self._end_sum_s, self._reach_sum_s, self._own_rows = empty(), empty(), empty()
        self._num_outputs = 1  # the guess

    # Who is there.

    def join(
        self,
        slot: int,
        role: Role,
        timing: TimingModel,
        transfer: TransferModel | None = None,
        *,
        prefill_chunk: int = 512,
        max_running: int = 64,
        pages_total: int = 0,
    ) -> None:
        """An instance takes a slot of the prefix index.

        Args:
            timing: of instances of this kind.
            transfer: of what it sends.
            prefill_chunk: most prompt tokens of one request in a step.
        """
        one = Slot(
            role=role, timing=timing, transfer=transfer or TransferModel(), chunk=prefill_chunk
        )
        self._take(slot, one)
        self.max_rows[slot] = max_running
        self.find_s[slot] = self.load_block_s[slot] = _NEVER_S
        self.pages_total[slot] = self.pages_free[slot] = pages_total
        self._refresh(slot)

    def leave(self, slot: int) -> list[str]:
        """Forget an instance. Returns the ids of requests that were there: they are lost."""
        lost = [one.request_id for one in self.live.values() if slot in (one.prefill, one.decode)]
        for request_id in lost:
            self.finished(request_id, None)
        self._free(slot)
        return lost

    # What happens.

    def report(self, slot: int, report: LoadReport, now_s: float) -> None:
        """An instance says how loaded it is.

        Cost: about 20 us, and 50 us if there are samples.
        """
        one = self._slot(slot)
        self._pass(now_s)  # here, too: what is said of a busy past must not keep requests away
        if report.samples:
            one.timing.observe(report.samples)
        self.pages_free[slot] = report.pages_free
        self.pages_cached[slot] = report.pages_cached
        self.pages_total[slot] = report.pages_total
        self.find_s[slot] = _NEVER_S if report.find_s is None else report.find_s
        self.load_block_s[slot] = _NEVER_S if report.load_block_s is None else report.load_block_s
        rows = report.samples[-1].decodes if report.samples else report.running
        self.rows[slot] = rows if report.context_tokens else 0
        self.context_tokens[slot] = report.context_tokens
        self._refresh(slot)
        unseen = self._unseen(one, report, now_s)
        self._reconcile_queue(slot, one, report.prefill_tokens, unseen, now_s)
        self.coming_pages[slot] = sum(
            live.pages
            for live in one.coming.values()
            if live.decode == slot and (live.prefill == slot or live.request_id in unseen)
        )

    def dispatched(
        self, request_id: str, request: RequestView, decision: Decision, now_s: float
    ) -> None:
        """A request was sent where a decision says."""
        prefill, decode = decision.prefill, decision.decode
        outputs = min(self.outputs, request.max_output_tokens)
        blocks = math.ceil((request.num_tokens + outputs) / self.page_tokens)
        level = level_of(request.priority)
        live = LiveRequest(
            request_id=request_id,
            prefill=prefill,
            decode=decode,
            level=level,
            num_tokens=request.num_tokens,
            new_tokens=request.num_tokens - decision.reused_blocks * self.page_tokens,
            work_s=decision.work_s,
            outputs=outputs,
            pages=blocks
            - (0 if decision.split else decision.reused_blocks - decision.loaded_blocks),
            sent_s=now_s,
            reach_s=now_s + decision.ttft_s,
            end_s=now_s + decision.ttft_s + outputs * decision.tbt_s,
        )
        self.live[request_id] = live
        for slot in {prefill, decode}:
            there = self._slot(slot)
            there.here[request_id] = there.coming[request_id] = live
        one = self._slot(prefill)
        one.position += 0.1 * (live.num_tokens - live.new_tokens / 2 - one.position)
        part = min(live.new_tokens, one.chunk)
        one.part = part if math.isinf(one.part) else one.part + 0.1 * (part - one.part)
        for behind in range(level, NUM_LEVELS):
            free_at_s = max(self.free_at_s.item(behind, prefill), now_s)
            self.free_at_s[behind, prefill] = free_at_s + live.work_s
            self._left_s[behind, prefill] += live.work_s
        self._pass(now_s)
        self.recent_work_s[prefill] += live.work_s
        self.coming_rows[decode] += 1
        self.coming_tokens[decode] += live.num_tokens
        self.coming_pages[decode] += live.pages
        self._reach_sum_s[decode] += live.reach_s

    def prefill_done(self, request_id: str, now_s: float) -> None:
        """The first output of a request came. Unknown ids are ignored."""
        live = self.live.get(request_id)
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
        """A request is over. Unknown ids are ignored.

        Args:
            output_tokens: how many it had; None where it was cut off and tells nothing.
        """
        live = self.live.pop(request_id, None)
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
        if seconds is not None:
            self._slot(slot).transfer.observe(size_bytes, float(ahead), seconds)

    # What is expected.

    def wait_s(self, priority: int, now_s: float, least_s: Floats | float = 0.0) -> Floats:
        """How long a request of this priority would wait for its prefill, by slot.

        Args:
            least_s: what it waits at least, not below 0.
        """
        wait_s: Floats = self.free_at_s[level_of(priority)] - now_s
        return np.maximum(wait_s, least_s, out=wait_s)

    def utilisation_of(self, slots: list[int], now_s: float) -> float:
        """Share of the time of these slots for which they were sent work of late."""
        self._pass(now_s)
        return float(self.recent_work_s[slots].mean()) / WORK_MEMORY_S

    def best_effort(self, slot: int) -> list[LiveRequest]:
        """Requests of the lowest level that decode at a slot."""
        here = self._slot(slot).here.values()
        return [x for x in here if x.decoding and x.level == NUM_LEVELS - 1]

    def load_after(self, slot: int, ahead_s: float, now_s: float) -> tuple[float, float]:
        """Rows and tokens of context that will decode at a slot in `ahead_s` seconds.

        Those that come begin, and those that decode end, evenly around the mean of their expected
        times: that takes sums by slot, and no look at each request.
        """
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

    # Inside.

    def _pass(self, now_s: float) -> None:
        """Time passes: what was sent counts less and less."""
        self.recent_work_s *= math.exp(min(0.0, self._worked_s - now_s) / WORK_MEMORY_S)
        self._worked_s = max(self._worked_s, now_s)

    def _unseen(self, one: Slot, report: LoadReport, now_s: float) -> set[str]:
        """Requests that a report cannot know of: the newest ones.

        Those just sent, and as many as the instance counts fewer than were sent. The first rule
        holds with several dispatchers, the second where the instance was busy for long.
        """
        missing = len(one.here) - (report.waiting + report.running + report.receiving)
        unseen: set[str] = set()
        for live in reversed(one.here.values()):
            if len(unseen) >= missing and live.sent_s < now_s - REPORT_LAG_S:
                break
            unseen.add(live.request_id)
        return unseen

    def _reconcile_queue(
        self, slot: int, one: Slot, prefill_tokens: int, unseen: set[str], now_s: float
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
            if level == NORMAL:
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
                others_s = foreign_s if level >= NORMAL else 0.0
                self.free_at_s[level, slot] = now_s + left_s + others_s
        self.coming_rows[decode] = max(0.0, self.coming_rows[decode] - 1)
        self.coming_tokens[decode] -= live.num_tokens
        self.coming_pages[decode] = max(0.0, self.coming_pages[decode] - live.pages)
        self._reach_sum_s[decode] -= live.reach_s


def _share_by(ahead_s: float, mean_s: float) -> float:
    """Of events that lie evenly around `mean_s` from now, the share that is over by `ahead_s`."""
    return min(max(ahead_s, 0.0) / (2.0 * max(mean_s, _SOON_S)), 1.0)
