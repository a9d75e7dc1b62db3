"""Turns the tokens of one choice into text: detokenisation, stop texts, held-back text."""

from collections.abc import Sequence

from inlay.engine.stops import StopFinder
from inlay.models.text_stream import TextStream


class TextOutput:
    """Text of one choice.

    Args:
        stream: detokeniser that belongs to this choice.
        stops: stop texts.
    """

    __slots__ = ("_finder", "_stream")

    def __init__(self, stream: TextStream, stops: Sequence[str]) -> None:
        self._stream = stream
        self._finder = StopFinder(stops) if stops else None

    def push(self, token_id: int, stops_count: bool) -> tuple[str, str | None]:
        """Text to show after one more token, and the stop text that it completed.

        Args:
            stops_count: False before `min_tokens`: what appears until then is no stop.
        """
        text = self._stream.push(token_id)
        if self._finder is None or not text:
            return text, None
        if not stops_count:
            return self._finder.flush() + text, None
        return self._finder.push(text)

    def end(self) -> tuple[str, str | None]:
        """What is left when the choice ends for another reason than a stop text."""
        text = self._stream.flush()
        if self._finder is None:
            return text, None
        shown, stop = self._finder.push(text)
        return (shown, stop) if stop is not None else (shown + self._finder.flush(), None)
