"""Choice of the path that the next slice takes, from estimates that the paths' completions teach.

The same rules, with the same arithmetic, as `native/transfer/spray.h`: on the same history both
decide alike. Times are nanoseconds of one clock that the caller keeps, durations are seconds.

Source: the form of the prediction follows TENT (Mooncake); estimates here have a memory, and a
slice is bound when a path has room for it, not when its transfer is submitted.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

MS = 1_000_000
MIN_SLICE_BYTES = 64 << 10
MAX_SLICE_BYTES = 2 << 20
SLICE_S = 0.0004
WINDOW_S = 0.010
MAX_WINDOW_BYTES = 16 << 20
MAX_ATTEMPTS = 256
WINDOW_SLICES = 4
TAIL_SLICES = 8

HALF_LIFE_S = 0.030
SAMPLE_S = 0.004
SAMPLE_SLICES = 32
MAX_SAMPLE_S = 0.010
MAX_RISE = 4.0
MIN_BETA0_S = 1e-6
MIN_BETA1 = 1.0 / 64
MAX_BETA1 = 64.0
BETA0_MEMORY_NS = 500 * MS
OLD_NS = 100 * MS
AGE_NS = 1_000 * MS
PROBE_SLACK_S = 0.005
RESTART_STEP_NS = 10 * MS
OUTLIER_ERRORS = 8.0
OUTLIER_S = 0.020


class Ticket(NamedTuple):
    """What was expected of one slice when it was posted; its completion hands it back."""

    sent: int
    service_s: float
    predicted_s: float
    alone: bool


class PathEstimate:
    """What one path is expected to do, learnt from what it did.

    A slice is expected to complete `beta1 * bytes ahead / bandwidth + beta0` after it is posted,
    its own bytes included. `beta1` is how many times slower than its link the path is, `beta0_s`
    what every slice takes however small. What was learnt counts half after 30 ms in which the path
    was busy.
    """

    def __init__(self, bandwidth: float, base_s: float, now: int) -> None:
        """Start from the link.

        Args:
            bandwidth: of the link, in bytes/s; above 0.
            base_s: what a slice of no bytes takes, in seconds: a measured round trip, rather too
                long than too short.
            now: time in ns.
        """
        self.bandwidth = bandwidth
        self.beta0_s = max(base_s, MIN_BETA0_S)
        self.beta1 = 1.0
        self.error_s = 0.0
        self.inflight_bytes = 0
        self.attempts = 0
        self._mark = now
        self._last = now
        self._newest = now
        self._idle_s = 0.0
        self._aged = now
        self._restarted: int | None = None
        self._all_busy_s = 0.0
        self._all_service_s = 0.0
        self._busy_s = 0.0
        self._error_sum_s = 0.0
        self._slices = 0
        self._service_s = 0.0
        self._service_bytes = 0
        self._rest_s = math.inf
        self._rest_latency_s = 0.0
        self._rest_bytes = 0
        self._bucket = 0
        self._lowest_s = math.inf
        self._lowest_before_s = math.inf
        self._resize()

    def posted(self, size_bytes: int, now: int) -> Ticket:
        """A slice was handed to the path; its completion needs the ticket."""
        if self.attempts == 0:
            self._mark = max(self._mark, now)
            self._idle_s = 0.0
        self.inflight_bytes += size_bytes
        self.attempts += 1
        service_s = self.per_byte_s * float(self.inflight_bytes)
        return Ticket(now, service_s, service_s + self.beta0_s, self.attempts == 1)

    def completed(self, size_bytes: int, ticket: Ticket, now: int) -> None:
        """A slice has done its work: its time teaches the estimate."""
        self.dropped(size_bytes)
        now = max(now, self._mark, ticket.sent)
        elapsed_s = float(now - self._mark) * 1e-9
        latency_s = float(now - ticket.sent) * 1e-9
        old = ticket.alone and ticket.sent - self._last >= OLD_NS
        self._mark = self._last = now
        self._busy_s += elapsed_s
        self._slices += 1
        self._error_sum_s += abs(latency_s - ticket.predicted_s)
        # A slice that found the path idle is served from `beta0` after it was sent.
        idle_s = max(elapsed_s - max(latency_s - self.beta0_s, 0.0), 0.0)
        if ticket.sent < self._newest:
            # It was overtaken: the path was not idle when a later one seemed to find it so.
            elapsed_s += min(self._idle_s, max(latency_s - self.beta0_s, 0.0))
            self._idle_s = 0.0
        else:
            elapsed_s -= idle_s
            self._idle_s += idle_s
            self._newest = ticket.sent
        if idle_s == 0.0 or ticket.service_s >= min(self.beta0_s, SLICE_S):
            # What is too short to be told from `beta0` tells nothing of the rate.
            self._service_s += elapsed_s
            self._service_bytes += size_bytes
        # Behind others a slice waits, too: its time can lower `beta0` and not raise it.
        rest_s = latency_s - self.per_byte_s * float(size_bytes)
        if (ticket.alone or rest_s < self.beta0_s) and rest_s < self._rest_s:
            self._rest_s, self._rest_bytes = rest_s, size_bytes
            self._rest_latency_s = latency_s
        if old or self._busy_s >= SAMPLE_S or self._slices >= SAMPLE_SLICES:
            self._learn(old)
            self._aged = now

    def dropped(self, size_bytes: int) -> None:
        """A slice left the path without an answer: its connection was closed, or it was revoked."""
        self.inflight_bytes -= size_bytes
        self.attempts -= 1

    def restart(self, now: int) -> None:
        """Begin again with a window of 4 slices, which doubles every 10 ms."""
        self._restarted = now

    def is_outlier(self, ticket: Ticket, now: int) -> bool:
        """Whether a slice takes, or took, far longer than the path's usual error explains."""
        latency_s = float(now - ticket.sent) * 1e-9
        return latency_s > ticket.predicted_s + max(OUTLIER_ERRORS * self.error_s, OUTLIER_S)

    def predicted_s(self, size_bytes: int, penalty: float = 1.0) -> float:
        """How long a slice would take if it were posted now."""
        ahead = float(self.inflight_bytes) + penalty * float(size_bytes)
        return self.per_byte_s * ahead + self.beta0_s

    def window_bytes(self, now: int) -> int:
        """How many bytes may be in flight."""
        if self._all_service_s == 0.0:
            return WINDOW_SLICES * self.slice_bytes
        if self._restarted is None:
            return self._window_bytes
        doublings = min(max(now - self._restarted, 0) // RESTART_STEP_NS, 12)
        return min(self._window_bytes, (WINDOW_SLICES * self.slice_bytes) << doublings)

    def has_room(self, size_bytes: int, now: int) -> bool:
        """Whether a slice may be posted now. An idle path takes one of any size."""
        if self.attempts == 0:
            return True
        if self.attempts >= MAX_ATTEMPTS:
            return False
        return self.inflight_bytes + size_bytes <= self.window_bytes(now)

    def is_old(self, now: int) -> bool:
        """Whether the path is idle and has taught nothing for 100 ms."""
        return self.attempts == 0 and now - self._last >= OLD_NS

    def age(self, now: int) -> None:
        """Forget, while the path is idle, half of what sets it apart from its link every second."""
        if self.attempts > 0 or now - self._aged < AGE_NS:
            return
        steps = (now - self._aged) // AGE_NS
        self._aged += steps * AGE_NS
        self.beta1 = 1.0 + (self.beta1 - 1.0) * math.exp2(-float(steps))
        self._resize()

    def _note_lowest(self, candidate_s: float) -> None:
        # The lowest of one half to one second, at the cost of two numbers.
        bucket = self._last // BETA0_MEMORY_NS
        if bucket != self._bucket:
            self._lowest_before_s = self._lowest_s if bucket == self._bucket + 1 else math.inf
            self._lowest_s = math.inf
            self._bucket = bucket
        self._lowest_s = min(self._lowest_s, candidate_s)

    def _learn(self, old: bool) -> None:
        if self._service_s > 0.0:
            span_s = min(self._service_s, MAX_SAMPLE_S)
            self._all_service_s += span_s
            weight = _weight(span_s, self._all_service_s, old)
            sample = self.bandwidth * self._service_s / float(self._service_bytes)
            if weight < 1.0:  # a stall is no rate: it is one sample, however long
                sample = min(sample, MAX_RISE * self.beta1)
            beta1 = self.beta1 + weight * (sample - self.beta1)
            self.beta1 = min(max(beta1, MIN_BETA1), MAX_BETA1)
        span_s = min(self._busy_s, MAX_SAMPLE_S)
        self._all_busy_s += span_s
        weight = _weight(span_s, self._all_busy_s, old)
        if self._rest_s < math.inf:
            # By the rate as it is known now: what a slow link took is no part of `beta0`.
            service_s = self.beta1 / self.bandwidth * float(self._rest_bytes)
            self._note_lowest(self._rest_latency_s - service_s)
        lowest_s = min(self._lowest_s, self._lowest_before_s)
        if lowest_s < math.inf:
            self.beta0_s = max(self.beta0_s + weight * (lowest_s - self.beta0_s), MIN_BETA0_S)
        self.error_s += weight * (self._error_sum_s / float(self._slices) - self.error_s)
        self._busy_s = self._error_sum_s = self._service_s = 0.0
        self._slices = self._service_bytes = 0
        self._rest_s = math.inf
        self._resize()

    def _resize(self) -> None:
        self.per_byte_s = self.beta1 / self.bandwidth
        self.bytes_per_s = bytes_per_s = self.bandwidth / self.beta1
        slice_bytes = MIN_SLICE_BYTES
        while slice_bytes < MAX_SLICE_BYTES and float(2 * slice_bytes) <= bytes_per_s * SLICE_S:
            slice_bytes *= 2
        self.slice_bytes = slice_bytes
        wanted = min(bytes_per_s * (WINDOW_S + self.beta0_s), float(MAX_WINDOW_BYTES))
        self._window_bytes = max(int(wanted), WINDOW_SLICES * slice_bytes)


def _weight(part_s: float, whole_s: float, old: bool) -> float:
    """The weight of the last `part_s` of `whole_s` seen so far.

    While less than the memory has been seen all of it counts alike, so the first sample replaces
    what the link promised. An old estimate is worth as much as one sample.
    """
    part = 1.0 - math.exp2(-part_s / HALF_LIFE_S)
    whole = 1.0 - math.exp2(-whole_s / HALF_LIFE_S)
    weight = part / whole if whole > 0.0 else 1.0
    return max(weight, 0.5) if old else weight


class PathView(NamedTuple):
    """One way for the slices of one request: its estimate, and what the request thinks of it."""

    estimate: PathEstimate
    penalty: float = 1.0
    open: bool = True


class Choice(NamedTuple):
    """The next slice: so many bytes on that path. No path (-1) says: wait for a completion."""

    path: int
    size_bytes: int


WAIT = Choice(-1, 0)


def choose(paths: Sequence[PathView], remaining_bytes: int, now: int) -> Choice:
    """Pick the path on which the next slice is expected to complete first, and the slice's size.

    If that path has no room the slice waits: it would still complete there first. A path that has
    been idle for so long that its estimate is old gets a small slice of a large batch when others
    carry load, if that is expected to cost no more than 5 ms or to end before the batch.

    Args:
        paths: the ways to the peer, in a fixed order; the first of equals is taken.
        remaining_bytes: what the batch has left to draw; at least 1.
        now: time in ns.
    """
    probe_bytes = min(remaining_bytes, MIN_SLICE_BYTES)
    best = old = -1
    best_s = old_s = math.inf
    num_open = num_busy = 0
    bytes_per_s = 0.0
    for i, (estimate, penalty, is_open) in enumerate(paths):
        if not is_open:
            continue
        estimate.age(now)
        num_open += 1
        num_busy += estimate.attempts > 0
        bytes_per_s += estimate.bytes_per_s
        predicted_s = estimate.predicted_s(probe_bytes, penalty)
        if predicted_s < best_s:
            best, best_s = i, predicted_s
        if predicted_s < old_s and estimate.is_old(now):
            old, old_s = i, predicted_s
    if best < 0:
        return WAIT
    large = remaining_bytes >= TAIL_SLICES * MIN_SLICE_BYTES
    harmless_s = max(best_s + PROBE_SLACK_S, float(remaining_bytes) / bytes_per_s)
    if old >= 0 and num_busy > 0 and large and old_s <= harmless_s:
        return Choice(old, probe_bytes)
    size_bytes = paths[best].estimate.slice_bytes
    if num_open > 1:  # the last slices are small, so that all paths end at about the same time
        while size_bytes > MIN_SLICE_BYTES and remaining_bytes < TAIL_SLICES * size_bytes:
            size_bytes //= 2
    size_bytes = min(size_bytes, remaining_bytes)
    return Choice(best, size_bytes) if paths[best].estimate.has_room(size_bytes, now) else WAIT
