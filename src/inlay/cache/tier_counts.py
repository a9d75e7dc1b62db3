"""What happened with the tiers."""

from dataclasses import dataclass


@dataclass(slots=True)
class TierCounts:
    """Totals since the start.

    Attributes:
        loaded_bytes, written_bytes: of pages that were moved.
        cut_tokens: tokens that were computed although a tier had them, because that was quicker.
        failures: calls of the store that failed, and blocks that were not as they must be.
        lost_blocks: blocks that had to give up their pages before they were copied.
    """

    loaded_bytes: int = 0
    written_bytes: int = 0
    cut_tokens: int = 0
    failures: int = 0
    lost_blocks: int = 0

    def failed(self) -> None:
        """Count a failure."""
        self.failures += 1
