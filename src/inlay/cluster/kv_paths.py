"""Which instances keys and values went between, as a dispatcher sees it: it passes targets on."""

from collections.abc import Set
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class KvPath:
    """From an instance that computes prompts to one that decodes.

    Attributes:
        prompts: whose KV was asked for.
        size_bytes: of the pages that were.
        lost: of the prompts, those that the first instance did not finish.
        last_s: from the request for the latest one to its first output.
        used_s: when that was.
    """

    prompts: int = 0
    size_bytes: int = 0
    lost: int = 0
    last_s: float | None = None
    used_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Moving:
    """One prompt's KV on its way.

    Attributes:
        asked_s: when it was asked for.
        size_bytes: of the pages that were.
    """

    path: KvPath
    asked_s: float
    size_bytes: int

    def arrived(self, now_s: float) -> None:
        """The first output is there."""
        self.path.last_s = now_s - self.asked_s
        self.path.used_s = now_s


class KvPaths:
    """By the names of both instances."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], KvPath] = {}

    def asked(self, source: str, target: str, size_bytes: int, now_s: float) -> Moving:
        """A prompt's KV is asked for."""
        path = self.known.setdefault((source, target), KvPath())
        path.prompts += 1
        path.size_bytes += size_bytes
        path.used_s = now_s
        return Moving(path, now_s, size_bytes)

    def keep(self, names: Set[str]) -> None:
        """Forget paths of all other instances."""
        for pair in [pair for pair in self.known if not names >= set(pair)]:
            del self.known[pair]
