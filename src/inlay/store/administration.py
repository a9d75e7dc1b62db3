"""What an administrator asks a master."""

from dataclasses import dataclass

from inlay.core.errors import ConfigError
from inlay.store import _backend
from inlay.store.link import Link
from inlay.store.survey import Survey, read_survey


@dataclass(frozen=True, kw_only=True)
class DrainState:
    """How far a node is emptied.

    Attributes:
        done: it holds nothing that is not elsewhere, and may leave.
        objects_stuck: those for which no other node has room.
    """

    done: bool
    objects_left: int
    objects_stuck: int


class Administration:
    """Questions about one tenant's store. All wait at most `timeout_s`.

    All methods raise `StoreUnavailable` (`StoreRefused`, `StoreVersionError`) when no master can be
    asked, `StoreTimeout` when it does not answer in time.
    """

    def __init__(self, masters: str, token: bytes, *, timeout_s: float = 5.0) -> None:
        self._timeout_s = timeout_s
        self._link = Link(masters, token, timeout_s=timeout_s)

    @property
    def address(self) -> str:
        """The master's, which is connected or was last."""
        return self._link.native.address

    def survey(self) -> Survey:
        """State and counts."""
        return read_survey(_backend.survey(self._link.native, self._timeout_s))

    def keys(self, prefix: str, cursor: int = 0, limit: int = 1000) -> tuple[list[bytes], int]:
        """Some keys with a prefix, in no order; go on with the cursor until it is 0."""
        keys, after = _backend.keys(self._link.native, prefix, cursor, limit, self._timeout_s)
        return list(keys), after

    def explain(self, key: str) -> str:
        """Why an object is where it is, or is not there."""
        return _backend.explain(self._link.native, key, self._timeout_s)

    def drain(self, node: str) -> DrainState:
        """Move a node's objects elsewhere; ask again to see how far it is.

        Raises:
            ConfigError: there is no such node; the message names those that there are.
        """
        known, done, left, stuck = _backend.drain(self._link.native, node, self._timeout_s)
        if not known:
            names = ", ".join(sorted(one.name for one in self.survey().nodes)) or "none"
            raise ConfigError(f"the store has no node {node!r}; there are: {names}")
        return DrainState(done=done, objects_left=left, objects_stuck=stuck)

    def close(self) -> None:
        """Ask no more."""
        self._link.close()

    def __enter__(self) -> "Administration":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
