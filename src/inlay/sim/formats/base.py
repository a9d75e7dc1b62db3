"""What a format is: lines of a file to a trace. `reading` opens files, and counts the lines."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

import msgspec

from inlay.core.errors import TraceError
from inlay.sim.trace import Trace

T = TypeVar("T")

_FIELD = re.compile(r"at `\$\.(\w+)`$")
_SHOWN = 40


class TraceFormat(ABC):
    """Parses one file. An object of it is made per file and sees all its lines once, in order.

    Args:
        block_tokens: tokens of the trace's blocks.
    """

    name: ClassVar[str]

    def __init__(self, block_tokens: int) -> None:
        if block_tokens < 1:
            raise TraceError(f"block_tokens must be at least 1, got {block_tokens}")
        self.block_tokens = block_tokens

    @staticmethod
    @abstractmethod
    def recognises(line: bytes) -> bool:
        """Whether a file that begins with this line is of the format."""

    @staticmethod
    def is_header(line: bytes) -> bool:
        """Whether the first line of a file is no request."""
        return False

    @abstractmethod
    def parse(self, lines: Sequence[bytes], *, more: bool) -> Trace:
        """The requests of the next lines, one each; times go on from those before.

        Args:
            lines: at least one.
            more: whether others follow. A format whose lines are not sorted may keep some of the
                requests, but not all, until then.

        Raises:
            TraceError: `request` is the place of the wrong one in `lines`.
        """


def parse_all(lines: Sequence[bytes], parse: Callable[[bytes], T]) -> list[T]:
    """Each line parsed; an error says which one it was."""
    parsed = []
    for place, line in enumerate(lines):
        try:
            parsed.append(parse(line))
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
            raise TraceError(f"{error}{_given(line, error)}", place) from None
    return parsed


def _given(line: bytes, error: Exception) -> str:
    """What a line has where a wrong value is; nothing where that is not said, or it is long."""
    found = _FIELD.search(str(error)) if isinstance(error, msgspec.ValidationError) else None
    if found is None:
        return ""
    whole = msgspec.json.decode(line)
    if not isinstance(whole, dict) or found[1] not in whole:
        return ""
    value = repr(whole[found[1]])
    return f", got {value}" if len(value) <= _SHOWN else ""
