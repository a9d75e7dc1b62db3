"""Sessions that pause and go on: their blocks make room meanwhile, and are back in time.

An agent's tool call is a known gap in the use of its KV. When it begins, blocks that no other
session shares are copied to the tiers, if they are not there, and are the next to be evicted. When
it ends, they come back before the next turn does.

Source: pause and resume of sandboxes as a signal of reuse, after TrEnv-X (arXiv 2509.09525).
"""

from collections import OrderedDict
from math import inf

from inlay.cache.block_names import BlockNames
from inlay.cache.kv_cache import KvCache
from inlay.cache.prefetch import Prefetch
from inlay.cache.tiers import Tiers

_MAX_SESSIONS = 4096


class Sessions:
    """The last turn of each session. Called by the step loop.

    Args:
        cache: of the instance.

    Attributes:
        tiers: behind its device, if there are any.
    """

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self.tiers: Tiers | None = None
        self._names: OrderedDict[str, BlockNames] = OrderedDict()
        self._recalls: dict[str, Prefetch] = {}

    def ended(self, session: str, names: BlockNames) -> None:
        """A turn is over; these are the blocks of its prompt and output."""
        self._names[session] = names
        self._names.move_to_end(session)
        if len(self._names) > _MAX_SESSIONS:
            self._names.popitem(last=False)

    def num_blocks(self, session: str) -> int:
        """Of its last turn; 0 if none is known."""
        names = self._names.get(session)
        return 0 if names is None else len(names.digests)

    def on_device(self, session: str) -> int:
        """How many of them are on the device."""
        names = self._names.get(session)
        if names is None:
            return 0
        return self._cache.match_prefix(names, names.num_tokens).num_blocks

    def pause(self, session: str) -> None:
        """Its blocks may go."""
        names = self._names.get(session)
        if names is None:
            return
        self._end_recall(session)
        pages = self._cache.cool(names)
        if self.tiers is not None:
            self.tiers.keep(pages)

    def resume(self, session: str) -> None:
        """Its blocks will be needed soon."""
        names = self._names.get(session)
        if names is None:
            return
        self._cache.warm(names)
        if self.tiers is not None and session not in self._recalls:
            # After all requests: a turn that comes meanwhile has its own place.
            prefetch = self.tiers.loader.begin(names, names.num_tokens, (inf, inf, 0, 0))
            if prefetch is not None:
                self._recalls[session] = prefetch

    def poll(self) -> None:
        """Let go of what has come back; it stays while nobody needs the room."""
        for session in [name for name, prefetch in self._recalls.items() if prefetch.over]:
            self._end_recall(session)

    def _end_recall(self, session: str) -> None:
        prefetch = self._recalls.pop(session, None)
        if prefetch is not None:
            assert self.tiers is not None
            self.tiers.loader.end(prefetch)
