"""Prompts of late: what of them is gone again, and what is only being computed."""

import math

from inlay.cluster.decision import DIGEST_BYTES

_STEP = 0.03


class SeenPrompts:
    """Remembers prompts by some of their digests.

    Attributes:
        displaced: of the blocks that were computed before, the share that no instance has any more;
            a mean over the latest prompts that repeat something. 0 at first.

    Args:
        stride: each so-manieth block of a prompt is looked at.
        max_digests: how many are remembered at least; at most twice as many.

    Cost: 0.2 us for each block that is looked at.
    """

    def __init__(self, stride: int, max_digests: int = 1 << 16) -> None:
        self.displaced = 0.0
        self._stride = stride
        self._max = max_digests
        # When each was, or will be, computed first.
        self._new: dict[bytes, float] = {}
        self._old: dict[bytes, float] = {}

    def ready_s(self, digests: bytes, num_blocks: int) -> float:
        """When so many leading blocks were, or will be, computed; long ago where nothing is known.

        An index counts blocks from when a request is sent, so that others follow it.
        """
        end = num_blocks // self._stride * self._stride * DIGEST_BYTES
        digest = digests[end - DIGEST_BYTES : end] if end else b""
        return self._new.get(digest, self._old.get(digest, -math.inf))

    def add(self, digests: bytes, num_held: int, ready_s: float) -> None:
        """A prompt was sent to be computed.

        Args:
            num_held: its leading blocks that some instance has.
            ready_s: when it will be computed.
        """
        known = num_held
        old, new = self._old, self._new
        step, held = self._stride * DIGEST_BYTES, num_held * DIGEST_BYTES
        # From the end: before a block that is known, all are.
        for end in range(len(digests) // step * step, 0, -step):
            digest = digests[end - DIGEST_BYTES : end]
            if digest in new or digest in old:
                known = max(known, end // DIGEST_BYTES)
                if end <= held:
                    break
            new[digest] = ready_s  # first, or once more where it is gone
        if len(new) > self._max:
            self._old, self._new = new, {}
        if known:
            self.displaced += _STEP * ((known - num_held) / known - self.displaced)
