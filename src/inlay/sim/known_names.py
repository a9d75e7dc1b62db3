"""What is known of the blocks of a trace that is gone through in parts."""

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import TraceError
from inlay.sim.trace import Trace

Names = NDArray[np.uint64]


class KnownNames:
    """Names of blocks that were seen, and what comes before each of them.

    Attributes:
        blocks: of all prompts so far.
        again: of these, those that an earlier request had.

    Memory: 16 bytes for each different name. Cost: about 1 us for each block.
    """

    def __init__(self) -> None:
        self.blocks = self.again = 0
        # Sorted names with what comes before them; each run at least twice as long as the next.
        self._runs: list[tuple[Names, Names]] = []

    def add(self, part: Trace) -> NDArray[np.bool_]:
        """The next requests.

        Returns:
            Of their blocks, those that an earlier request had, as long as `part.blocks`.

        Raises:
            TraceError: a name comes behind another one than in an earlier part; `request` says in
                which prompt.
        """
        before = np.roll(part.blocks, 1)
        firsts = part.block_starts[:-1]
        before[firsts] = part.blocks[firsts]  # begins a prompt: no other name can lie there
        names, places = np.unique(part.blocks, return_index=True)
        ahead = before[places]
        new = np.ones(len(names), bool)
        for known, known_before in self._runs:
            at = np.minimum(np.searchsorted(known, names), len(known) - 1)
            here = known[at] == names
            wrong = here & (known_before[at] != ahead)
            if wrong.any():
                one = int(np.flatnonzero(wrong)[np.argmin(places[wrong])])
                name = names[one]
                request = int(np.searchsorted(part.block_starts, places[one], "right")) - 1
                raise TraceError(
                    f"block {name} {_follows(name, ahead[one])}, but "
                    f"{_follows(name, known_before[at[one]])} in an earlier request: "
                    "a name stands for a block and all before it",
                    request,
                )
            new &= ~here
        self.blocks += len(part.blocks)
        self.again += len(part.blocks) - int(new.sum())
        seen = np.ones(len(part.blocks), bool)
        seen[places[new]] = False  # where it is for the first time
        if not new.any():
            return seen
        self._runs.append((names[new], ahead[new]))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            self._merge()
        return seen

    def _merge(self) -> None:
        """The last two runs become one."""
        runs = self._runs.pop(), self._runs.pop()
        names, before = (np.concatenate(columns) for columns in zip(*runs, strict=True))
        order = np.argsort(names, kind="stable")
        self._runs.append((names[order], before[order]))


def _follows(name: np.uint64, before: np.uint64) -> str:
    return "begins a prompt" if name == before else f"follows block {before}"
