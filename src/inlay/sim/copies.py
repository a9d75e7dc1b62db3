"""Blocks that one simulated instance gives another, as `inlay.cluster.copies` has them moved.

A request that waits for a copy is chosen for once more when it has come or failed; of copies ahead
of need there are few at a time, and nobody waits for them.
"""

from inlay.cluster.decision import DIGEST_BYTES, Copy
from inlay.cluster.prefix_index import PrefixIndex
from inlay.sim.asked import Asked
from inlay.sim.world import Copied, World

_MAX_AHEAD = 4


class Copies:
    """Those of one simulation.

    Attributes:
        copied_blocks: that have come, so far.
    """

    def __init__(self, world: World, index: PrefixIndex) -> None:
        self._world = world
        self._index = index
        self._open: dict[int, tuple[Copy, Asked, bool]] = {}
        self._num_ahead = 0
        self.copied_blocks = 0

    @property
    def awaited(self) -> bool:
        """Whether a request waits for one."""
        return len(self._open) > self._num_ahead

    def wait(self, copy: Copy, asked: Asked) -> None:
        """Copy blocks for a request that waits until `heard` gives it back."""
        self._start(copy, asked, False)

    def ahead(self, copy: Copy, asked: Asked) -> None:
        """Copy blocks that will be wanted, if few are being copied."""
        if self._num_ahead < _MAX_AHEAD:
            self._num_ahead += 1
            self._start(copy, asked, True)

    def heard(self, news: Copied) -> Asked | None:
        """A copy has come or failed; returns who waits for it."""
        copy, asked, ahead = self._open.pop(news.copy)
        self._num_ahead -= ahead
        if news.came:
            self.copied_blocks += copy.num_blocks
            self._index.expect(copy.target, _first_blocks(copy, asked), news.time_s)
        return None if ahead else asked

    def _start(self, copy: Copy, asked: Asked, ahead: bool) -> None:
        number = self._world.copy(_first_blocks(copy, asked), copy.source, copy.target)
        self._open[number] = copy, asked, ahead


def _first_blocks(copy: Copy, asked: Asked) -> bytes:
    return asked.view.digests[: (copy.first_block + copy.num_blocks) * DIGEST_BYTES]
