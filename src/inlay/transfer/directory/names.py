"""An engine's own name, and its peers by theirs: what the engine asks of a directory."""

import time
from collections.abc import Callable
from typing import TypeVar

from inlay.core.errors import ArgumentError, PeerDiedError, PeerError, PeerUnreachableError
from inlay.transfer.directory.base import Directory, check_name
from inlay.transfer.directory.keeper import Keeper, reachable_address

PeerT = TypeVar("PeerT")


class Names:
    """The directory of one engine.

    Args:
        directory: None: there is none.
        name: what to publish; None: nothing, names are only looked up.

    Raises:
        ArgumentError: a name that cannot be, or no directory for it.
        EndpointError: the directory does not take the entry.
    """

    def __init__(
        self, directory: Directory | None, name: str | None, engine_id: str, address: str
    ) -> None:
        self._directory = directory
        self._keeper: Keeper | None = None
        if name is None:
            return
        if directory is None:
            raise ArgumentError(f"the name {name!r} needs a directory to publish it in")
        self._keeper = Keeper(directory, name, engine_id, reachable_address(address, directory))

    def connect(
        self,
        name: str,
        connect: Callable[[str, float], PeerT],
        engine_id: Callable[[PeerT], str],
        timeout_s: float,
    ) -> PeerT:
        """The engine that has the name now.

        Args:
            connect: connects to an address within seconds.
            engine_id: of who is connected.

        Raises:
            ArgumentError: no name and no address, or no directory to look it up in.
            EndpointError: the directory does not answer.
            PeerUnreachableError: nobody has the name; otherwise what `connect` raises last.
            PeerDiedError: another engine listens at the address of the one that had the name.
        """
        if self._directory is None:
            raise ArgumentError(
                f"{name!r} is no host:port; to find engines by name, give directory=..."
            )
        end = time.monotonic() + timeout_s
        entry = self._directory.look_up(check_name(name), timeout_s=timeout_s)
        problem: PeerError = PeerUnreachableError(
            f"no engine has the name {name} in {self._directory.url}"
        )
        if entry is None:
            problem.peer = name
            raise problem
        for address in entry.addresses:
            try:
                peer = connect(address, max(0.0, end - time.monotonic()))
            except PeerError as error:
                problem = error
                continue
            if engine_id(peer) == entry.id:
                return peer
            problem = PeerDiedError(
                f"the engine that had the name {name} has ended; another one is at {address}"
            )
        problem.peer = problem.peer or name
        raise problem

    def close(self) -> None:
        """Withdraw the name."""
        if self._keeper is not None:
            self._keeper.close()
