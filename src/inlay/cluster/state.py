"""What is known of all instances, as arrays over their slots. Pure: no clock, no I/O.

It is made of three sources: what was sent to an instance and is not done (exact, but only of this
dispatcher's requests), what the instance reports (true, but a moment old), and what time has done
since then (predicted). Policies read the arrays; the dispatcher and the simulator call the methods.
What they do to the numbers is done by a core, which is native code and over the same memory.

Shapes: `S` slots, `L` levels of priority.
"""

import numpy as np

from inlay.cluster import _backend
from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.live import LiveRequest
from inlay.cluster.slot_numbers import WORK_MEMORY_S, Floats, level_of
from inlay.cluster.slots import Slot, Slots
from inlay.cluster.timing import TimingModel, TransferModel, rows_of
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import LoadReport, Role

_NEVER_S = 1e9


class ClusterState(Slots):
    """Instances and their load, by slot; the arrays are those of `SlotNumbers`.

    Args:
        page_tokens: tokens of a block, the same for all instances.
        page_bytes: of a block's KV, when it moves.
        copies: whether instances give blocks to each other when a `Decision.copy` asks for it.
    """

    def __init__(self, page_tokens: int, page_bytes: int = 0, copies: bool = False) -> None:
        if page_tokens < 1 or page_bytes < 0:
            raise ArgumentError(
                f"cluster state: page_tokens must be >= 1 and page_bytes >= 0, got {page_tokens} "
                f"and {page_bytes}"
            )
        super().__init__(_backend.State(page_tokens, page_bytes))
        self.page_tokens, self.page_bytes, self.copies = page_tokens, page_bytes, copies

    @property
    def core(self) -> _backend.State:
        """What keeps the numbers: for policies, and for native code that feeds it."""
        return self._core

    @property
    def live(self) -> dict[str, LiveRequest]:
        """Requests sent and not finished, by id, as they are now. Cost: a walk through them."""
        rows = (LiveRequest(*row) for row in self._core.live())
        return {one.request_id: one for one in rows}

    @property
    def outputs(self) -> float:
        """Mean tokens of an output, over the latest requests."""
        return self._core.outputs

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
            transfer: what is known of what it sends.
            prefill_chunk: most prompt tokens of one request in a step.
        """
        self._take(slot, Slot(role=role))
        self.chunk[slot] = prefill_chunk
        self.max_rows[slot] = max_running
        self.find_s[slot] = self.load_block_s[slot] = _NEVER_S
        self.pages_total[slot] = self.pages_free[slot] = pages_total
        self._set_link(slot, transfer or TransferModel())
        self._core.join(slot, timing.core, prefill_chunk)

    def leave(self, slot: int) -> list[str]:
        """Forget an instance. Returns the ids of requests that were there: they are lost."""
        self._slot(slot)
        lost = self._core.leave(slot)
        self._free(slot)
        return lost

    # What happens.

    def report(self, slot: int, report: LoadReport, now_s: float) -> None:
        """An instance says how loaded it is.

        Cost: 0.4 us, and 0.1 us for each sample.
        """
        self._slot(slot)
        self._core.report(
            slot,
            report.waiting,
            report.running,
            report.receiving,
            report.prefill_tokens,
            report.context_tokens,
            report.pages_total,
            report.pages_free,
            report.pages_cached,
            report.find_s,
            report.load_block_s,
            rows_of(report.samples),
            now_s,
        )

    def dispatched(
        self, request_id: str, request: RequestView, decision: Decision, now_s: float
    ) -> None:
        """A request was sent where a decision says."""
        self._core.dispatched(
            request_id,
            decision.prefill,
            decision.decode,
            request.priority,
            request.num_tokens,
            request.max_output_tokens,
            decision.reused_blocks,
            decision.loaded_blocks,
            decision.ttft_s,
            decision.tbt_s,
            decision.work_s,
            now_s,
        )

    def prefill_done(self, request_id: str, now_s: float) -> None:
        """The first output of a request came. Unknown ids are ignored."""
        self._core.prefill_done(request_id, now_s)

    def finished(self, request_id: str, output_tokens: int | None) -> None:
        """A request is over. Unknown ids are ignored.

        Args:
            output_tokens: how many it had; None where it was cut off and tells nothing.
        """
        self._core.finished(request_id, output_tokens)

    def sending(self, slot: int, size_bytes: float) -> None:
        """A slot began to send so many bytes."""
        self._core.sending(slot, size_bytes)

    def sent(self, slot: int, size_bytes: float, seconds: float | None) -> None:
        """It has sent them, in so many seconds; None where it failed."""
        self._core.sent(slot, size_bytes, seconds)

    # What is expected.

    def transfer(self, slot: int) -> TransferModel:
        """Of what a slot sends, as far as is known now."""
        self._slot(slot)
        return self._link(slot)

    def wait_s(self, priority: int, now_s: float) -> Floats:
        """How long a request of this priority would wait for its prefill, by slot."""
        wait_s: Floats = self.free_at_s[level_of(priority)] - now_s
        return np.maximum(wait_s, 0.0, out=wait_s)

    def tbt_at_s(self, slot: int, rows: float, context_tokens: float) -> float:
        """`tbt_s` of one slot."""
        return self._core.tbt_at_s(slot, rows, context_tokens)

    def longest_step_s(self, slot: int) -> float:
        """A step with a full chunk of a prompt."""
        return self.step_s.item(slot) + self.chunk_s.item(slot)

    def utilisation_of(self, slots: list[int], now_s: float) -> float:
        """Share of the time of these slots for which they were sent work of late."""
        self._core.elapse(now_s)
        return float(self.recent_work_s[slots].mean()) / WORK_MEMORY_S

    def best_effort(self, slot: int) -> list[LiveRequest]:
        """Requests of the lowest level that decode at a slot."""
        return [LiveRequest(*row) for row in self._core.best_effort(slot)]

    def load_after(self, slot: int, ahead_s: float, now_s: float) -> tuple[float, float]:
        """Rows and tokens of context that will decode at a slot in `ahead_s` seconds.

        Those that come begin, and those that decode end, evenly around the mean of their expected
        times: that takes sums by slot, and no look at each request.
        """
        return self._core.load_after(slot, ahead_s, now_s)
