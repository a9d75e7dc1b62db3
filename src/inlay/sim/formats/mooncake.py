"""Mooncake's traces: a JSON object per line, sorted by time.

`{"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [names of blocks]}`.
Lines may say `session` (a number) and `group` (a name), too, which others' readers pass over.

Source: the traces of Mooncake (FAST'25), github.com/kvcache-ai/Mooncake, FAST25-release.
"""

import gzip
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import TraceError
from inlay.sim.formats.base import TraceFormat, parse_all
from inlay.sim.trace import Trace, starts_of

_Length = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Line(msgspec.Struct, gc=False, omit_defaults=True):
    timestamp: float
    input_length: _Length
    output_length: _Length
    hash_ids: list[int]
    session: Annotated[int, msgspec.Meta(ge=-1, le=2**63 - 1)] = -1
    group: str = "default"


class MooncakeFormat(TraceFormat):
    """Reads them. Names of blocks are taken as they are."""

    name: ClassVar[str] = "mooncake"

    def __init__(self, block_tokens: int) -> None:
        super().__init__(block_tokens)
        self._decoder = msgspec.json.Decoder(_Line)
        self._groups: dict[str, int] = {}

    @staticmethod
    def recognises(line: bytes) -> bool:
        """A JSON object with `hash_ids`."""
        return line.lstrip().startswith(b"{") and b'"hash_ids"' in line

    def parse(self, lines: Sequence[bytes], *, more: bool) -> Trace:
        """See `TraceFormat`."""
        rows = parse_all(lines, self._decoder.decode)
        counts = [len(row.hash_ids) for row in rows]
        try:
            names = np.fromiter(
                chain.from_iterable(row.hash_ids for row in rows), np.uint64, sum(counts)
            )
        except OverflowError:
            names = np.concatenate([_names(place, row.hash_ids) for place, row in enumerate(rows)])
        groups = self._groups
        return Trace(
            arrival_s=np.array([row.timestamp for row in rows]) / 1000,
            input_tokens=np.array([row.input_length for row in rows], np.int32),
            output_tokens=np.array([row.output_length for row in rows], np.int32),
            block_starts=starts_of(np.array(counts)),
            blocks=names,
            block_tokens=self.block_tokens,
            session=np.array([row.session for row in rows]),
            group=np.array([groups.setdefault(row.group, len(groups)) for row in rows]),
            groups=tuple(groups),
        )


def _names(place: int, hash_ids: list[int]) -> NDArray[np.uint64]:
    try:
        return np.array(hash_ids, np.uint64)
    except OverflowError:
        wrong = next(name for name in hash_ids if not 0 <= name < 2**64)
        raise TraceError(f"hash_ids must be 0 to 2^64 - 1, got {wrong}", place) from None


def write(trace: Trace | Iterable[Trace], file: str | Path) -> None:
    """Write a trace, or consecutive parts of one, to a file; gzipped if its name ends in `.gz`.

    Times are rounded to whole milliseconds. Sessions and groups are written where there are any.
    The file does not say how long blocks are: others take them to have 512 tokens.
    """
    file = Path(file)
    encoder = msgspec.json.Encoder()
    with gzip.open(file, "wb", 6) if file.suffix == ".gz" else file.open("wb") as stream:
        for part in [trace] if isinstance(trace, Trace) else trace:
            stream.write(encoder.encode_lines(_lines(part)))


def _lines(trace: Trace) -> Iterable[_Line]:
    starts, blocks = trace.block_starts.tolist(), trace.blocks.tolist()
    columns = zip(
        np.rint(trace.arrival_s * 1000).astype(np.int64).tolist(),
        trace.input_tokens.tolist(),
        trace.output_tokens.tolist(),
        starts,
        starts[1:],
        trace.session.tolist(),
        trace.group.tolist(),
        strict=False,  # block_starts has one more
    )
    for time_ms, input_tokens, output_tokens, first, end, session, group in columns:
        yield _Line(
            time_ms, input_tokens, output_tokens, blocks[first:end], session, trace.groups[group]
        )
