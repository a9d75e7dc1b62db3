"""Where an instance has weights from that do not lie on its machine. `serve` knows how."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

import msgspec


class PulledWeights(msgspec.Struct, frozen=True, kw_only=True):
    """A version that is on this machine now.

    Attributes:
        directory: of this instance alone.
        held_at: address at which others have it from here.
    """

    directory: Path
    held_at: str


class WeightSource(Protocol):
    """Pulls versions from those who hold them. No call blocks."""

    def pull(self, version: str, holders: Sequence[str]) -> "Future[PulledWeights]":
        """Bring a version here; the future fails with what the last holder failed with."""
        ...

    def keep(self, version: str) -> None:
        """This version serves; all others may go."""
        ...

    def close(self) -> None:
        """Offer nothing any more, and remove what was pulled."""
        ...
