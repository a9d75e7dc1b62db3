"""When instances that are gone will probably be back, by how long others were gone."""

_UNKNOWN_S = 5.0  # before any was seen to come, or when one is later than the last
_LEAST_S = 1.0


class Returns:
    """How long instances are away; for one dispatcher."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._took_s: float | None = None

    def away(self, name: str, now_s: float) -> None:
        """An instance is not there; said again, nothing changes."""
        self._since_s.setdefault(name, now_s)

    def back(self, name: str, now_s: float) -> None:
        """It is there."""
        since_s = self._since_s.pop(name, None)
        if since_s is not None:
            self._took_s = now_s - since_s

    def forget(self, name: str) -> None:
        """It will not come."""
        self._since_s.pop(name, None)

    def expected_s(self, now_s: float) -> float:
        """Until the first is expected: as long as the last one was away, less the time since."""
        if self._took_s is None or not self._since_s:
            return _UNKNOWN_S
        left_s = self._took_s - (now_s - min(self._since_s.values()))
        return max(_LEAST_S, left_s) if left_s > 0 else _UNKNOWN_S
