"""Azure's traces: a CSV file of times and lengths, `TIMESTAMP,ContextTokens,GeneratedTokens`.

Nothing is known of what prompts say, so no two of them have a block in common.

Source: the Azure LLM inference traces (Patel et al., Splitwise, ISCA 2024).
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from inlay.core.errors import TraceError
from inlay.sim.formats.base import TraceFormat, parse_all
from inlay.sim.trace import Trace, blocks_of, starts_of

_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"


class AzureFormat(TraceFormat):
    """Reads them. Seconds count from the first request, block names from 0 on.

    Times are as in `2023-11-16 18:17:03.9799600`, with up to nine digits behind the point; an
    offset, as in the traces of 2024, must be `+00:00` in all lines.
    """

    name: ClassVar[str] = "azure"

    def __init__(self, block_tokens: int) -> None:
        super().__init__(block_tokens)
        self._start: np.datetime64 | None = None
        self._blocks = 0

    @staticmethod
    def recognises(line: bytes) -> bool:
        """The header of the columns."""
        return line.strip() == _HEADER

    is_header = recognises

    def parse(self, lines: Sequence[bytes], *, more: bool) -> Trace:
        """See `TraceFormat`."""
        rows = parse_all(lines, _row)
        times = np.array([row[0] for row in rows], "datetime64[ns]")
        if self._start is None:
            self._start = times[0]
        early = np.flatnonzero(times < self._start)
        if len(early):
            ahead_s = (self._start - times[early[0]]) / np.timedelta64(1, "s")
            raise TraceError(
                f"arrives {ahead_s:g} s before the first request: sort the requests by arrival",
                int(early[0]),
            )
        tokens = np.array([row[1:] for row in rows])
        inputs = np.maximum(tokens[:, 0], 1)  # what is less is refused by its own column
        starts = starts_of(blocks_of(inputs, self.block_tokens))
        first = self._blocks
        self._blocks += int(starts[-1])
        return Trace(
            arrival_s=(times - self._start) / np.timedelta64(1, "s"),
            input_tokens=tokens[:, 0],
            output_tokens=tokens[:, 1],
            block_starts=starts,
            blocks=np.arange(first, self._blocks, dtype=np.uint64),
            block_tokens=self.block_tokens,
        )


def _row(line: bytes) -> tuple[np.datetime64, int, int]:
    cells = line.decode().strip().split(",")
    if len(cells) != 3:
        raise TraceError(f"must have 3 cells, {_HEADER.decode()}, but has {len(cells)}")
    return np.datetime64(cells[0].removesuffix("+00:00"), "ns"), int(cells[1]), int(cells[2])
