"""Which blocks of one request are to be loaded, and which are there. Data and rules, no I/O.

Loads go from the last block to the first while the engine computes from the first to the last,
until they meet: late tokens cost more to compute, since they attend to more, and all blocks cost
the same to load.

Source: Cake (arXiv 2410.03065).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from inlay.cache.block_names import BlockNames
from inlay.cache.kv_cache import PageHold
from inlay.core.messages import Tier


@dataclass(slots=True, eq=False)
class Stretch:
    """Neighbouring blocks start..stop that are loaded by one call.

    Attributes:
        state: `todo`; `queued` while a load is under way or waits for its turn; `over` when they
            have come, or are left to be computed.
        load: the load under way, for whoever started it.
        blocked_s: when computing first had to wait for this stretch.
    """

    start: int
    stop: int
    state: Literal["todo", "queued", "over"] = "todo"
    load: Any = None
    blocked_s: float | None = None

    @property
    def num_blocks(self) -> int:
        """How many blocks."""
        return self.stop - self.start


@dataclass(slots=True, eq=False)
class Prefetch:
    """What becomes of the blocks of one request behind those on the device.

    Attributes:
        names: names of the request's blocks.
        first: blocks before this one were on the device when the request came.
        last: blocks from this one on are of no use: at least one token must be computed.
        order: whose loads come first, lowest first.
        asked_s: when the store was asked; None once it has answered.
        hold: pages to load into; None until there is room or the request runs.
        admitted: whether the request runs; then `hold` is the request's own.
        front: blocks before this one are computed or being computed.
        stretches: in order of position; empty until the store has answered.
        arrived: blocks that were loaded, and from which tier.
        taken: tokens that were loaded and need not be computed, by tier.
    """

    names: BlockNames
    first: int
    last: int
    order: Any
    asked_s: float | None
    hold: PageHold | None = None
    admitted: bool = False
    front: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    arrived: dict[int, Tier] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def found(self, num_blocks: int, stretch_blocks: int) -> None:
        """The store has answered: it has so many blocks from `first` on."""
        self.asked_s = None
        start, stop = max(self.first, self.front), min(self.first + num_blocks, self.last)
        # Whole stretches at the end: the odd one is the last to be loaded.
        while stop > start:
            self.stretches.append(Stretch(max(start, stop - stretch_blocks), stop))
            stop = self.stretches[-1].start
        self.stretches.reverse()

    @property
    def open_stretches(self) -> Iterator[Stretch]:
        """What is neither loaded nor left to be computed, last first."""
        return (stretch for stretch in reversed(self.stretches) if stretch.state != "over")

    @property
    def over(self) -> bool:
        """Whether nothing more will arrive."""
        return self.asked_s is None and next(self.open_stretches, None) is None

    def coming_tokens(self, page_tokens: int) -> int:
        """Tokens that need no computing when their turn comes: they have come, or are being loaded.

        Cost: O(stretches).
        """
        under_way = sum(one.num_blocks for one in self.stretches if one.state == "queued")
        taken = sum(self.taken.values()) if self.admitted else 0
        return (len(self.arrived) + under_way) * page_tokens - taken

    def reach(self, block: int) -> int:
        """The end of the run of arrived blocks that begins with `block`."""
        while block in self.arrived:
            block += 1
        return block

    def gate(self, block: int) -> Stretch | None:
        """The first open stretch that ends behind `block`."""
        for stretch in self.stretches:
            if stretch.stop > block and stretch.state != "over":
                return stretch
        return None

    def next_arrived(self, block: int) -> int:
        """The first block from `block` on that has arrived, else `last`."""
        return min((one for one in self.arrived if one >= block), default=self.last)

    def done(self, block: int) -> bool:
        """Whether a request that has its blocks before `block` will get no more from here."""
        if block >= self.last:
            return True
        return (
            self.asked_s is None
            and self.gate(block) is None
            and self.next_arrived(block) == self.last
        )

    def take(self, start: int, stop: int, page_tokens: int) -> None:
        """Count arrived blocks that need not be computed."""
        for block in range(start, stop):
            tier = self.arrived[block]
            self.taken[tier] = self.taken.get(tier, 0) + page_tokens
