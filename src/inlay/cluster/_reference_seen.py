"""Prompts of late in plain Python: serves where there is no extension, and is the tests' model.

`inlay._native.cluster.SeenPrompts` has the same methods and gives the same answers.
"""

import math

from inlay.core.block_hash import DIGEST_BYTES

_STEP = 0.03  # of the mean


class SeenPrompts:
    """See `policies.seen.SeenPrompts`."""

    def __init__(self, seed0: int, seed1: int, stride: int, max_digests: int) -> None:
        self.displaced = 0.0
        self._stride = stride
        self._max = max_digests
        # When each was, or will be, computed first.
        self._new: dict[bytes, float] = {}
        self._old: dict[bytes, float] = {}

    def ready_s(self, digests: bytes, num_blocks: int) -> float:
        """When so many leading blocks were, or will be, computed."""
        end = num_blocks // self._stride * self._stride * DIGEST_BYTES
        digest = digests[end - DIGEST_BYTES : end] if end else b""
        return self._new.get(digest, self._old.get(digest, -math.inf))

    def add(self, digests: bytes, num_held: int, ready_s: float) -> None:
        """A prompt was sent to be computed."""
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
