"""Opens files of traces, finds their format, and says in which line something is wrong."""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from inlay.core.errors import TraceError
from inlay.core.near_names import did_you_mean
from inlay.core.text_files import BYTE_ORDER_MARK, refuse_lfs_pointer
from inlay.sim.formats.azure import AzureFormat
from inlay.sim.formats.base import TraceFormat
from inlay.sim.formats.mooncake import MooncakeFormat
from inlay.sim.formats.openai_log import OpenAiLogFormat
from inlay.sim.known_names import KnownNames
from inlay.sim.trace import BLOCK_TOKENS, Trace, out_of_order

FORMATS: dict[str, type[TraceFormat]] = {
    form.name: form for form in (MooncakeFormat, AzureFormat, OpenAiLogFormat)
}
"""By the names that `read` takes."""

_GZIP = b"\x1f\x8b"
_PART_BYTES = 1 << 24
"""Of lines, after which a part ends though it may have more requests: texts may be long."""


def read(file: str | Path, *, format: str = "auto", block_tokens: int = BLOCK_TOKENS) -> Trace:
    """The trace in a file, gzipped or plain.

    Args:
        format: a name of `FORMATS`; `auto` goes by the first line.
        block_tokens: tokens of a block. A Mooncake file has names of blocks and does not say how
            long they are; in the others any length can be chosen.

    Raises:
        TraceError: no such format, or something is wrong with a line, which the message names.
        OSError: the file cannot be read.

    Cost: about 10 us per request of Mooncake's traces, with 24 names each. All lines are in memory
        at once: `read_chunks` is for files of which that is too much.
    """
    for trace in _chunks(file, None, format, block_tokens):
        return trace
    raise TraceError(f"{file} has no requests")


def read_chunks(
    file: str | Path,
    requests: int = 20_000,
    *,
    format: str = "auto",
    block_tokens: int = BLOCK_TOKENS,
    known: KnownNames | None = None,
) -> Iterator[Trace]:
    """The trace in a file as consecutive parts; arguments as of `read`.

    Args:
        requests: of a part, at most; fewer where 16 MiB of the file have less.
        known: is told of each part. Without it, that a name has one predecessor is checked within
            each part only.

    Memory holds the lines of a part at a time. Times and names of blocks go on from part to part.
    """
    if requests < 1:
        raise TraceError(f"a chunk must have at least 1 request, got {requests}")
    yield from _chunks(file, requests, format, block_tokens, known)


def _chunks(
    file: str | Path,
    requests: int | None,
    format: str,
    block_tokens: int,
    known: KnownNames | None = None,
) -> Iterator[Trace]:
    with _opened(Path(file)) as stream:
        lines = _Lines(file, stream)
        parser: TraceFormat | None = None
        ahead_s = 0.0
        while part := lines.take(requests):
            if parser is None:
                parser = _format_of(file, part[0][1], format)(block_tokens)
                del part[: parser.is_header(part[0][1])]
                if not part:
                    continue
            try:
                trace = parser.parse([line for _, line in part], more=lines.more)
                if trace.arrival_s[0] < ahead_s:
                    raise TraceError(out_of_order(trace.arrival_s[0], ahead_s), 0)
                if known is not None:
                    known.add(trace)
            except TraceError as error:
                if error.request is None:
                    raise TraceError(f"{file}: {error.reason}") from None
                line = part[error.request][0]
                raise TraceError(f"{file}, line {line}: {error.reason}") from None
            ahead_s = float(trace.arrival_s[-1])
            yield trace


class _Lines:
    """Lines of a file that are not empty, with their numbers."""

    def __init__(self, file: str | Path, stream: Iterable[bytes]) -> None:
        self._file = file
        self._numbered = enumerate(_unmarked(stream), 1)
        self._next = self._read()

    @property
    def more(self) -> bool:
        """Whether there is another one."""
        return self._next is not None

    def take(self, most: int | None) -> list[tuple[int, bytes]]:
        """The next ones: all of them, or `most`, or fewer that are long."""
        taken: list[tuple[int, bytes]] = []
        size = 0
        while self._next is not None:
            if most is not None and (len(taken) == most or size >= _PART_BYTES):
                break
            taken.append(self._next)
            size += len(self._next[1])
            self._next = self._read()
        return taken

    def _read(self) -> tuple[int, bytes] | None:
        try:
            return next((one for one in self._numbered if one[1].strip()), None)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise TraceError(f"{self._file} is a damaged gzip file: {error}") from None


def _unmarked(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Without a byte-order mark before the first one."""
    rest = iter(lines)
    if (first := next(rest, None)) is not None:
        yield first.removeprefix(BYTE_ORDER_MARK)
        yield from rest


@contextmanager
def _opened(file: Path) -> Iterator[Iterable[bytes]]:
    refuse_lfs_pointer(file, error=TraceError)
    with file.open("rb") as stream:
        packed = stream.read(2) == _GZIP
        stream.seek(0)
        with gzip.GzipFile(fileobj=stream) if packed else nullcontext(stream) as lines:
            yield lines


def _format_of(file: str | Path, line: bytes, name: str) -> type[TraceFormat]:
    if name == "auto":
        for form in FORMATS.values():
            if form.recognises(line):
                return form
        raise TraceError(
            f"{file} begins like none of the formats {', '.join(FORMATS)}: "
            f"{line[:80].decode(errors='replace')!r}"
        )
    if name not in FORMATS:
        meant = did_you_mean(name, FORMATS)
        raise TraceError(
            f"format {name!r} is none of auto, {', '.join(FORMATS)}{f'; {meant}' if meant else ''}"
        )
    return FORMATS[name]
