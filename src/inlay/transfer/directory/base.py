"""What every directory does, and an entry as it is stored."""

import abc
import json
import re
from dataclasses import asdict, dataclass

from inlay.core.errors import ArgumentError, EndpointError

ASK_S = 2.0  # how long a question waits for its answer
LEASE_S = 10  # an entry that is not renewed ends after it, where the service knows of time
MAX_ANSWER_BYTES = 64 << 10

_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_ADDRESS = re.compile(r"\S{1,253}:\d{1,5}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Who has a name.

    Attributes:
        id: the engine's, drawn anew at each start.
        started_ns: when it was published, in nanoseconds since 1970: for people who look.
        addresses: where it listens, the best first.
    """

    id: str
    started_ns: int
    addresses: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """JSON, as it is stored."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes, place: str) -> "Entry":
        """Read what is stored at `place`.

        Raises:
            EndpointError: it is no entry.
        """
        try:
            found = json.loads(data)
            entry = Entry(
                id=found["id"],
                started_ns=int(found["started_ns"]),
                addresses=tuple(found["addresses"]),
            )
            if not isinstance(entry.id, str) or not all(map(_ADDRESS.fullmatch, entry.addresses)):
                raise ValueError("no id, or no addresses")
        except (ValueError, TypeError, KeyError) as error:
            raise EndpointError(
                f"{place} holds no engine: {data[:60]!r} ({type(error).__name__}: {error})"
            ) from None
        return entry


class Directory(abc.ABC):
    """A service that keeps entries under names. Its methods may be called by any thread.

    All raise `EndpointError` when the service does not answer within `timeout_s` of network time
    (resolving its host's name comes on top), answers with an error, or is another kind of service.

    Attributes:
        url: how messages name it, without a password.
        server: its host and port.
    """

    url: str
    server: tuple[str, int]

    @abc.abstractmethod
    def publish(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """Give the name to this engine, whoever has it: a restarted one takes over at once."""

    @abc.abstractmethod
    def renew(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> bool:
        """Keep the entry for another `LEASE_S`; publish it again if it was lost.

        Returns:
            False if another engine has the name now, which is left alone.
        """

    @abc.abstractmethod
    def withdraw(self, name: str, entry: Entry, *, timeout_s: float = ASK_S) -> None:
        """Remove the entry if it is still this engine's."""

    @abc.abstractmethod
    def look_up(self, name: str, *, timeout_s: float = ASK_S) -> Entry | None:
        """Who has the name, or None."""

    def unreachable(self, error: Exception) -> EndpointError:
        """The error for a service that does not answer as it should."""
        what = str(error) or type(error).__name__
        return EndpointError(f"the directory {self.url} does not answer: {what}")


def check_name(name: str) -> str:
    """The name, if engines can have it.

    Raises:
        ArgumentError: they cannot.
    """
    if _NAME.fullmatch(name) is None:
        raise ArgumentError(
            f"an engine's name has 1 to 255 letters, digits, dots, dashes or underscores, got "
            f"{name!r}"
        )
    return name
