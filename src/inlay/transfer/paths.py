"""What an engine knows of the paths that its slices take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PathState = Literal["ready", "paused", "closed"]


@dataclass(frozen=True, kw_only=True)
class PathInfo:
    """One path to one peer, as it was when it was asked for.

    Counts are of all connections of the path since the peer was connected to; a slice counts when
    it is complete. `TransferEngine.pause` takes a path out of use.

    Attributes:
        peer: its address.
        transport: such as "tcp".
        name: which of the transport's paths to that peer.
        state: "paused" takes no slices for now, "closed" has no connection.
        reason: why it is not ready: "operator" who paused it, else the error's name, such as
            "peer_unreachable"; empty for ready ones.
        read_bytes, written_bytes: seen from this engine.
        slices: that are complete.
        inflight_bytes, inflight_slices: handed to the path, not yet over.
        retries: slices that had to be posted again elsewhere or later, by reason.
        predicted_s, measured_s: how long slices were expected to take when they were posted, and
            took: means of about the last 32; 0 before the first.
        error_s: mean of |measured - predicted| of the same slices.
        bandwidth_gbs: 10^9 bytes per second that the next slices are expected to get; None before
            the first.
        latencies: how many slices took how long; the bounds are the buckets of
            `inlay.core.metrics.TRANSFER_LATENCY`, the last count is of all that took longer.
        latency_sum_s, error_sum_s: over all slices.
    """

    peer: str
    transport: str
    name: str
    state: PathState
    reason: str
    read_bytes: int
    written_bytes: int
    slices: int
    inflight_bytes: int
    inflight_slices: int
    retries: Mapping[str, int]
    predicted_s: float
    measured_s: float
    error_s: float
    bandwidth_gbs: float | None
    latencies: tuple[int, ...]
    latency_sum_s: float
    error_sum_s: float


@dataclass(frozen=True, kw_only=True)
class PortCounts:
    """What became of connections to an engine's port.

    Attributes:
        refused: closed before they proved to hold the token, by reason: "token" (another one),
            "version" (none in common), "garbage" (not the protocol), "too_slow" (no proof in 2 s),
            "crowd" (the oldest of 64 without proof), "too_many" (1024 in all), "left" (went away by
            itself, as do engines that hold another token and those that are connected already).
        fenced_lanes: connections shut at an initiator's wish, so that nothing more lands through
            them.
    """

    refused: Mapping[str, int]
    fenced_lanes: int
