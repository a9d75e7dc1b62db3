"""Which prefixes are asked for often: recent hits, older ones counting less and less."""

import math

_YOUNG_S = 1.0  # no rate is taken over less


class HotPrefix:
    """A prefix that requests had in common.

    Attributes:
        hits: how often it was asked for, each hit decaying with `Heat.memory_s`.
        hit_s: when last.
        first_s: when first.
        asked_s: when a copy of it was last asked for.
    """

    __slots__ = ("asked_s", "first_s", "hit_s", "hits")

    def __init__(self, now_s: float) -> None:
        self.hits = 0.0
        self.first_s = self.hit_s = now_s
        self.asked_s = -math.inf


class Heat:
    """Counts hits per prefix, which the digest of its last block names.

    Args:
        memory_s: after that time a hit counts 1/e.
        max_prefixes: more are not remembered; the older half of them goes.

    A hit counts for the longest prefix that an instance has of a request, so that the turns of one
    conversation, each of which continues the one before, heat nothing; requests that begin alike
    and go on differently heat what they share.
    """

    def __init__(self, memory_s: float = 30.0, max_prefixes: int = 8192) -> None:
        self.memory_s = memory_s
        self._max = max_prefixes
        self._prefixes: dict[bytes, HotPrefix] = {}

    def hit(self, digest: bytes, now_s: float) -> HotPrefix:
        """A request has this prefix, and some instance has it, too."""
        prefix = self._prefixes.get(digest)
        if prefix is None:
            if len(self._prefixes) >= self._max:
                self._forget()
            prefix = self._prefixes[digest] = HotPrefix(now_s)
        prefix.hits *= math.exp((prefix.hit_s - now_s) / self.memory_s)
        prefix.hits += 1.0
        prefix.hit_s = now_s
        return prefix

    def rate(self, prefix: HotPrefix) -> float:
        """Hits per second, as of the last one; of a new prefix over the time that it is known."""
        age_s = max(prefix.hit_s - prefix.first_s, _YOUNG_S)
        return prefix.hits / (self.memory_s * -math.expm1(-age_s / self.memory_s))

    def __len__(self) -> int:
        return len(self._prefixes)

    def _forget(self) -> None:
        latest = sorted(self._prefixes.items(), key=lambda item: item[1].hit_s)
        self._prefixes = dict(latest[len(latest) // 2 :])
