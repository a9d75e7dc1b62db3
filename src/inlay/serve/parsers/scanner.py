"""Finds marker texts in a stream that arrives in arbitrary pieces."""

import re
from collections.abc import Iterable, Iterator


class MarkerScanner:
    """Cuts streamed text into markers and the text between them.

    Text that may be the beginning of a marker is held back until that is decided, so the result
    does not depend on how the stream was cut.
    """

    def __init__(self, markers: Iterable[str]) -> None:
        self._markers = sorted(set(markers), key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(marker) for marker in self._markers))
        self._starts = {marker[:size] for marker in self._markers for size in range(1, len(marker))}
        self._longest = max(map(len, self._markers))
        self._held = ""

    def push(self, text: str) -> Iterator[tuple[bool, str]]:
        """Yield `(is_marker, text)` for everything that is decided now."""
        text = self._held + text
        self._held = ""
        position = 0
        for match in self._pattern.finditer(text):
            if match.start() > position:
                yield False, text[position : match.start()]
            yield True, match[0]
            position = match.end()
        rest = text[position:]
        for size in range(min(self._longest - 1, len(rest)), 0, -1):
            if rest[-size:] in self._starts:
                self._held = rest[-size:]
                rest = rest[:-size]
                break
        if rest:
            yield False, rest

    def flush(self) -> str:
        """The text held back; the stream has ended."""
        held, self._held = self._held, ""
        return held
