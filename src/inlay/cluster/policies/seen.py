"""Prompts of late: what of them is gone again, and what is only being computed."""

import secrets

from inlay.cluster import _backend


class SeenPrompts:
    """Remembers prompts by some of their digests.

    Args:
        stride: each so-manieth block of a prompt is looked at.
        max_digests: how many are remembered at least; at most twice as many.

    Cost: about 0.03 us for each block that is looked at.
    """

    def __init__(self, stride: int, max_digests: int = 1 << 16) -> None:
        self._core = _backend.SeenPrompts(
            secrets.randbits(64), secrets.randbits(64), stride, max_digests
        )

    @property
    def displaced(self) -> float:
        """Of the blocks that were computed before, the share that no instance has any more.

        A mean over the latest prompts that repeat something; 0 at first.
        """
        return self._core.displaced

    def ready_s(self, digests: bytes, num_blocks: int) -> float:
        """When so many leading blocks were, or will be, computed; long ago where nothing is known.

        An index counts blocks from when a request is sent, so that others follow it.
        """
        return self._core.ready_s(digests, num_blocks)

    def add(self, digests: bytes, num_held: int, ready_s: float) -> None:
        """A prompt was sent to be computed.

        Args:
            num_held: its leading blocks that some instance has.
            ready_s: when it will be computed.
        """
        self._core.add(digests, num_held, ready_s)
