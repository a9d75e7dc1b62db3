"""Which idle page goes first when pages run out."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator


class EvictionPolicy(ABC):
    """Orders idle pages. Pure: no clock, no memory, no index.

    Calls come in this order for each page: `add` when it becomes idle, then either `discard`
    when somebody uses it again, or it is returned by `pop`. Pages of one prefix become idle
    children first, and a parent is used whenever its child is; a policy must keep children
    before their parents under these rules.
    """

    @abstractmethod
    def add(self, page_id: int) -> None:
        """A page became idle."""

    @abstractmethod
    def add_first(self, page_id: int) -> None:
        """A page became idle, or is so, whose content is not needed for a while."""

    @abstractmethod
    def discard(self, page_id: int) -> None:
        """An idle page is used again."""

    @abstractmethod
    def pop(self) -> int:
        """Choose a page to evict and forget it. There is at least one."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of idle pages."""

    @abstractmethod
    def __iter__(self) -> Iterator[int]:
        """Idle pages in the order in which they would go."""


class LruEviction(EvictionPolicy):
    """Least recently used first. O(1) per call."""

    def __init__(self) -> None:
        self._pages: OrderedDict[int, None] = OrderedDict()

    def add(self, page_id: int) -> None:
        """A page became idle: it goes last."""
        self._pages[page_id] = None

    def add_first(self, page_id: int) -> None:
        """A page that goes next."""
        self._pages[page_id] = None
        self._pages.move_to_end(page_id, last=False)

    def discard(self, page_id: int) -> None:
        """An idle page is used again."""
        del self._pages[page_id]

    def pop(self) -> int:
        """The page that has been idle for longest."""
        return self._pages.popitem(last=False)[0]

    def __len__(self) -> int:
        return len(self._pages)

    def __iter__(self) -> Iterator[int]:
        return iter(self._pages)
