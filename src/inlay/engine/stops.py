"""Stop texts in a stream of text pieces."""

from collections.abc import Sequence


class StopFinder:
    """Finds stop texts that may lie across piece borders and holds back what may start one.

    Args:
        stops: texts to find; none may be empty.
    """

    __slots__ = ("_held", "_longest", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text and return what is safe to show, and the stop that was found.

        The text before the earliest stop is returned, the stop itself and what follows is
        dropped.
        """
        text = self._held + text
        self._held = ""
        found: tuple[int, str] | None = None
        for stop in self._stops:
            at = text.find(stop)
            if at >= 0 and (found is None or at < found[0]):
                found = (at, stop)
        if found is not None:
            return text[: found[0]], found[1]
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                self._held = tail
                return text[:-length], None
        return text, None

    def flush(self) -> str:
        """The text held back, now that nothing follows."""
        held, self._held = self._held, ""
        return held
