"""Which instances have which weights, and which weights compute new requests. Pure.

While new weights are put in place some instances have the old ones and some the new ones. What is
sent to an instance is sent for the weights that it has, so a request stays among those that have
the same. New requests go to the old ones until half of all instances have the new ones, then to
these: at least half of them serve at any time, and no request that comes later is computed by
older weights than one before.
"""

from inlay.core.instance_messages import InstanceInfo
from inlay.core.messages import ServedWeights


class WeightGroups:
    """See the module. Weights are named as `Namespace.weights` names them.

    Attributes:
        current: that compute new requests; empty while there is no instance.
    """

    def __init__(self) -> None:
        self.current = ""
        self._of: dict[int, str] = {}
        self._others: dict[str, list[int]] = {}
        self._served: dict[int, ServedWeights] = {}

    def put(self, slot: int, info: InstanceInfo) -> None:
        """An instance that takes requests says what it has."""
        name = info.namespace.weights
        if self._of.get(slot) != name or self._served[slot] != info.weights:
            self._of[slot], self._served[slot] = name, info.weights
            self._choose()

    def remove(self, slot: int) -> None:
        """An instance takes no requests any more."""
        if self._of.pop(slot, None) is not None:
            del self._served[slot]
            self._choose()

    def hold(self, name: str) -> bool:
        """Whether any instance has these weights."""
        return name in self._of.values()

    def others(self, name: str) -> list[int]:
        """Slots that have other weights; not to be changed."""
        if name not in self._others:
            self._others[name] = [slot for slot, has in self._of.items() if has != name]
        return self._others[name]

    @property
    def newest(self) -> ServedWeights:
        """Those that all are to have: what was asked for last, of what is there."""
        return max(self._served.values(), key=_asked_s, default=ServedWeights())

    @property
    def version(self) -> str:
        """Of `current`."""
        return self.version_of(self.current)

    def version_of(self, name: str) -> str:
        """Of weights that an instance has; empty: they were loaded first, or nobody has them."""
        slot = next((slot for slot, has in self._of.items() if has == name), None)
        return "" if slot is None else self._served[slot].version

    def _choose(self) -> None:
        self._others.clear()
        asked_s: dict[str, float] = {}
        for slot, name in self._of.items():
            asked_s[name] = max(asked_s.get(name, 0.0), self._served[slot].asked_s)
        if not asked_s:
            self.current = ""
            return
        newest = max(asked_s, key=asked_s.__getitem__)
        most = 2 * list(self._of.values()).count(newest) >= len(self._of)
        if self.current not in asked_s or (asked_s[newest] > asked_s[self.current] and most):
            self.current = newest


def _asked_s(weights: ServedWeights) -> float:
    return weights.asked_s
