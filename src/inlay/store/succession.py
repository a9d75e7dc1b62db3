"""Who is master, and with which epoch: what every way to settle it does.

A master serves for a *reign*. Its epoch is greater than that of every reign before, and is settled
where it outlives the process before the first object is put.
"""

import abc
import threading
from collections.abc import Sequence
from dataclasses import dataclass

FOREVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class Reign:
    """What a new master has to know.

    Attributes:
        epoch: of this master.
        nodes: names of those that the master before knew: it is waited for them before a key is
            said to be absent.
        until: when the master has to stop unless it is renewed, in seconds of `boot_time`.
    """

    epoch: int
    nodes: tuple[str, ...]
    until: float


class Succession(abc.ABC):
    """One process's way to become master, again and again. For one thread."""

    @abc.abstractmethod
    def begin(self, stop: threading.Event, *, above: int = 0) -> Reign | None:
        """Wait until this process is master; None when `stop` came first.

        Args:
            above: an epoch that was seen somewhere; that of the reign is greater.
        """

    @abc.abstractmethod
    def renew(self, nodes: Sequence[str]) -> float | None:
        """Stay master, and keep the names of the nodes for the next one.

        Returns:
            Until when, as `Reign.until`; None when another process is master.

        Raises:
            InlayError: it cannot be said now; what was promised before holds.
        """

    @abc.abstractmethod
    def end(self) -> None:
        """Be master no more, so that another one need not wait."""
