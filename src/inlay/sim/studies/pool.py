"""Requests against a pool of blocks that an eviction policy keeps: which part of them it holds.

Each request counts as hits the blocks from its first to the first one that is missing. At its
arrival these are hit and the rest is stored; blocks of the request itself stay meanwhile.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from inlay.sim.trace import Trace
from inlay.store import EvictionPolicy, Newcomer

NS = 1_000_000_000
MIX = 0x9E3779B97F4A7C15
WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Request:
    """When it arrives, and the ids of its blocks; an id stands for the blocks before it, too."""

    time_s: float
    blocks: list[int]


def whole_blocks(trace: Trace) -> list[Request]:
    """The requests of a trace without partial blocks at their ends, which nobody can share."""
    names, starts = trace.blocks.tolist(), trace.block_starts.tolist()
    whole = (trace.input_tokens // trace.block_tokens).tolist()
    return [
        Request(time_s, names[start : start + count])
        for time_s, start, count in zip(trace.arrival_s.tolist(), starts, whole, strict=False)
    ]


class Lfu:
    """What was asked for least often goes first; of these the oldest, and of a prompt its end.

    For comparison alone, as in Mooncake's table: no server of ours evicts so. What goes is
    forgotten with its count.
    """

    def __init__(self) -> None:
        self._uses: dict[int, tuple[int, int]] = {}  # how often, and when it was last
        self._heap: list[tuple[int, int, int]] = []
        self._tick = 0

    def add(self, chain: Sequence[Newcomer], now_ns: int) -> None:
        """Blocks that were stored, parents first."""
        self._count([one.id for one in chain])

    def hit(self, chain: Sequence[int], now_ns: int) -> None:
        """Blocks that were read, parents first."""
        self._count(chain)

    def victim(self, now_ns: int, held: Callable[[int], bool] | None = None) -> int | None:
        """The block that goes next; it stays until `evict`."""
        aside, found = [], None
        while self._heap and found is None:
            uses, tick, id = self._heap[0]
            if self._uses.get(id) != (uses, tick):
                heapq.heappop(self._heap)
            elif held is not None and held(id):
                aside.append(heapq.heappop(self._heap))
            else:
                found = id
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return found

    def evict(self, id: int, key_hash: int) -> None:
        """It is gone."""
        del self._uses[id]

    def _count(self, ids: Sequence[int]) -> None:
        for id in reversed(ids):
            self._tick += 1
            self._uses[id] = (self._uses.get(id, (0, 0))[0] + 1, self._tick)
            heapq.heappush(self._heap, (*self._uses[id], id))


def key_hash(block: int) -> int:
    """64 well-mixed bits, as those of a key."""
    word = (block + 1) * MIX & WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & WORD
    return word ^ word >> 31


class Pool:
    """At most `capacity` blocks of one size and cost, by a policy of the store, or by `lfu`."""

    def __init__(self, policy: str, capacity: int) -> None:
        self.policy: EvictionPolicy | Lfu = Lfu() if policy == "lfu" else EvictionPolicy(policy)
        self.ids: dict[int, int] = {}
        self.blocks: dict[int, int] = {}
        self.free = list(range(capacity))[::-1]

    def leading(self, blocks: Sequence[int]) -> int:
        """How many blocks from the first one on are here."""
        for count, block in enumerate(blocks):
            if block not in self.ids:
                return count
        return len(blocks)

    def request(self, request: Request) -> int:
        """The hits of a request, whose blocks are here afterwards, as far as they fit."""
        now_ns = int(request.time_s * NS)
        hits = self.leading(request.blocks)
        here = [self.ids[block] for block in request.blocks if block in self.ids]
        self.policy.hit(here, now_ns)
        missing = [block for block in request.blocks if block not in self.ids]
        self.make_room(len(missing), now_ns, set(here).__contains__)
        ids = [self.free.pop() for _ in missing[: len(self.free)]]
        self.ids.update(zip(missing, ids, strict=False))
        self.blocks.update(zip(ids, missing, strict=False))
        self.policy.add(self.newcomers(request.blocks, set(ids)), now_ns)
        return hits

    def make_room(self, count: int, now_ns: int, held: Callable[[int], bool]) -> None:
        """Evict until `count` blocks fit, or all that are left are held."""
        while len(self.free) < count:
            id = self.policy.victim(now_ns, held)
            if id is None:
                return
            block = self.blocks.pop(id)
            del self.ids[block]
            self.policy.evict(id, key_hash(block))
            self.free.append(id)

    def newcomers(self, blocks: Sequence[int], fresh: set[int]) -> list[Newcomer]:
        """Those of the blocks that were just given an id."""
        parents = [None, *(self.ids.get(block) for block in blocks)]
        return [
            Newcomer(self.ids[block], parent, key_hash(block))
            for block, parent in zip(blocks, parents, strict=False)
            if self.ids.get(block) in fresh
        ]


def hit_ratio(requests: Sequence[Request], policy: str, capacity: int) -> float:
    """Hits of all requests, as a part of their blocks."""
    pool = Pool(policy, capacity)
    return sum(pool.request(request) for request in requests) / total(requests)


def total(requests: Sequence[Request]) -> int:
    """All blocks of the requests."""
    return sum(len(request.blocks) for request in requests)


def farthest_next_use(requests: list[Request], capacity: int) -> float:
    """The ratio of one who knows the future and drops what is used again last (Belady's rule).

    Of blocks that are used again together the later in the prompt goes first, and a block
    may go at once, so that what is kept is always made of prefixes.
    """
    uses = list(next_uses(requests))[::-1]
    here: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    hits = 0
    for request, again in zip(requests, uses, strict=True):
        leading = True
        for depth, (block, use) in enumerate(zip(request.blocks, again, strict=True)):
            leading = leading and block in here
            hits += leading
            here[block] = use
            heapq.heappush(heap, (-use, -depth, block))
        while len(here) > capacity:
            use, _, block = heapq.heappop(heap)
            if here.get(block) == -use:
                del here[block]
    return hits / total(requests)


def unbounded(requests: Sequence[Request]) -> float:
    """The ratio without any eviction."""
    seen: set[int] = set()
    hits = 0
    for request in requests:
        hits += next(
            (k for k, b in enumerate(request.blocks) if b not in seen), len(request.blocks)
        )
        seen.update(request.blocks)
    return hits / total(requests)


def next_uses(requests: list[Request]) -> Iterator[list[int]]:
    """For each request from the last to the first, when each of its blocks is used again."""
    soonest: dict[int, int] = {}
    for index in range(len(requests) - 1, -1, -1):
        blocks = requests[index].blocks
        yield [soonest.get(block, len(requests)) for block in blocks]
        soonest.update(dict.fromkeys(blocks, index))
