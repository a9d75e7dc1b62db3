"""How long keys and values take from one instance to another, learned from what they took."""

import math
from dataclasses import dataclass

from inlay.core.errors import ConfigError


@dataclass(kw_only=True)
class TransferModel:
    """How long KV takes from one instance to another: `latency_s` and bytes over bandwidth.

    What the sender has still to send goes first. Bandwidth is learned, later transfers counting
    more, from those that were long enough to tell it from the latency.

    Attributes:
        latency_s: of an empty transfer.
        bandwidth: bytes per second.
        relative_std: of a transfer's time.
        sums: bytes and seconds that the bandwidth was learned from, older ones counting less.
    """

    latency_s: float = 0.002
    bandwidth: float = 1e9
    relative_std: float = 0.5
    sums: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        if self.latency_s < 0 or not self.bandwidth > 0:
            raise ConfigError(
                f"transfer: latency_s must be >= 0 and bandwidth above 0, got {self.latency_s} "
                f"and {self.bandwidth}"
            )

    def seconds(self, size_bytes: float, ahead_bytes: float = 0.0) -> float:
        """Expected time, with so many bytes to send before it."""
        return self.latency_s + (size_bytes + ahead_bytes) / self.bandwidth

    def observe(self, size_bytes: float, ahead_bytes: float, seconds: float) -> None:
        """A transfer took so long, with so many bytes of the sender before it."""
        moving_s = seconds - self.latency_s
        if seconds <= 0 or size_bytes <= 0:
            return
        if moving_s < self.latency_s:
            # Too short to say something of bandwidth; it bounds the latency.
            self.latency_s = 0.9 * self.latency_s + 0.1 * min(seconds, self.latency_s)
            return
        error = min(abs(seconds / self.seconds(size_bytes, ahead_bytes) - 1.0), 1.0)
        variance = 0.9 * (self.relative_std * self.relative_std) + 0.1 * (error * error)
        self.relative_std = math.sqrt(variance)
        sum_bytes, sum_s = self.sums
        self.sums = (0.9 * sum_bytes + size_bytes + ahead_bytes, 0.9 * sum_s + moving_s)
        self.bandwidth = self.sums[0] / self.sums[1]
