"""Masters elected through etcd, and where clients find the one that is elected.

One key holds the *seat*: who is master, where it listens, its epoch. The master puts the seat again
every `RENEW_S`. A candidate that has seen the same revision of it for `LEASE_S`, by its own clock,
takes it over in a transaction that fails when the revision changed meanwhile. The master stops by
itself `LEASE_S - MARGIN_S` after it *began* its last renewal that succeeded, which is earlier than
the moment when any candidate could first see that renewal plus `LEASE_S`. No two clocks are
compared; they only have to run equally fast, to within `MARGIN_S / LEASE_S`.

etcd's own leases are not used: they last 2 s at least and are ended in steps of 0.5 s, so that a
dead master would be noticed later.

Source: the order of renewals, observation and takeover follows the leader election of Kubernetes'
client library; fencing the leader by its own clock follows Gray and Cheriton's leases (1989).
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from inlay.core.errors import EndpointError, StoreUnavailable
from inlay.core.etcd import Etcd, EtcdValue
from inlay.store.address import Cluster
from inlay.store.succession import Reign, Succession

LEASE_S = 2.0
RENEW_S = 0.4
MARGIN_S = 0.2
POLL_S = 0.1
ASK_S = 1.0

logger = logging.getLogger(__name__)


def boot_time() -> float:
    """Seconds of a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, kw_only=True)
class Seat:
    """The master's seat as it is stored.

    Attributes:
        holder: drawn by each process at its start.
        address: host:port where clients and nodes find the master; None: it has left.
        epoch: the master's.
        nodes: names of those that it knows.
        renewals: counts, so that each put changes the value for people who look, too.
    """

    holder: str
    address: str | None
    epoch: int
    nodes: tuple[str, ...] = ()
    renewals: int = 0

    def to_bytes(self) -> bytes:
        """JSON, as it is stored."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes, place: str) -> "Seat":
        """Read what is stored at `place`.

        Raises:
            StoreUnavailable: it is no seat.
        """
        try:
            found = json.loads(data)
            address = found["address"]
            return Seat(
                holder=str(found["holder"]),
                address=None if address is None else str(address),
                epoch=int(found["epoch"]),
                nodes=tuple(map(str, found["nodes"])),
                renewals=int(found["renewals"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StoreUnavailable(
                f"{place} holds no master's seat: {data[:60]!r} ({type(error).__name__}: {error})"
            ) from None


def look_up_master(cluster: Cluster, etcd: Etcd, *, timeout_s: float = ASK_S) -> str | None:
    """Where the elected master listens; None: there is none. It may be dead meanwhile.

    Raises:
        EndpointError: etcd does not answer.
        StoreUnavailable: the key holds something else.
    """
    key = seat_key(cluster)
    found = etcd.get(key, timeout_s=timeout_s)
    return None if found is None else Seat.from_bytes(found.value, f"{key} in {etcd.url}").address


def seat_key(cluster: Cluster) -> str:
    """The key in etcd."""
    return f"/inlay/stores/{cluster.name}/master"


class Election(Succession):
    """See `Succession`.

    Args:
        address: where this process listens when it is master, as others reach it.
        clock: seconds that only grow.
        on_wait: called with the seat whenever another one is seen on it.
    """

    def __init__(
        self,
        cluster: Cluster,
        address: str,
        *,
        etcd: Etcd | None = None,
        clock: Callable[[], float] = boot_time,
        on_wait: Callable[[Seat], None] = lambda seat: None,
    ) -> None:
        self._etcd = etcd or cluster.etcd()
        self._key = seat_key(cluster)
        self._clock = clock
        self._on_wait = on_wait
        self._holder = secrets.token_hex(8)
        self._address = address
        self._seat: Seat | None = None
        self._revision = 0
        self._watched = (-1, 0.0)  # revision, and when it was seen first
        self._failing = False

    def begin(self, stop: threading.Event, *, above: int = 0) -> Reign | None:
        """See `Succession`. While etcd does not answer it is asked again."""
        shown = ""
        while not stop.is_set():
            try:
                reign, other = self.attempt(above)
                if reign is not None:
                    return reign
                if other is not None and other.holder != shown:
                    shown = other.holder
                    self._on_wait(other)
                self._failing = False
            except EndpointError as error:
                if not self._failing:
                    logger.warning("%s; it is asked again", error)
                self._failing = True
            stop.wait(POLL_S)
        return None

    def attempt(self, above: int = 0) -> tuple[Reign | None, Seat | None]:
        """Look at the seat once, and take it if it is free.

        Returns:
            The reign if it was taken, and who else was seen on the seat.

        Raises:
            EndpointError: etcd does not answer; the seat may be taken nevertheless.
            StoreUnavailable: the key holds something else.
        """
        self._seat = None
        found = self._etcd.get(self._key, timeout_s=ASK_S)
        seat = self._read(found)
        if found is not None and seat is not None and not self._is_free(found.revision, seat):
            return None, seat
        return self._take(found, seat, above), None

    def renew(self, nodes: Sequence[str]) -> float | None:
        """See `Succession`."""
        assert self._seat is not None, "renewed before it began"
        seat = self._seat
        self._seat = Seat(
            holder=seat.holder,
            address=seat.address,
            epoch=seat.epoch,
            nodes=tuple(nodes),
            renewals=seat.renewals + 1,
        )
        for _ in range(2):
            asked = self._clock()
            done, found = self._put(self._seat)
            if done:
                return asked + LEASE_S - MARGIN_S
            held = self._read(found)
            # An earlier renewal may have come through without its answer.
            if found is None or held is None or not _is_same(held, seat):
                return None
            self._revision = found.revision
        return None

    def end(self) -> None:
        """See `Succession`. Without etcd, the next master has to wait."""
        seat, self._seat = self._seat, None
        if seat is None:
            return
        left = Seat(holder=seat.holder, address=None, epoch=seat.epoch, nodes=seat.nodes)
        try:
            self._put(left)
        except EndpointError as error:
            logger.warning("%s; the next master waits %g s for this one", error, LEASE_S)

    def _is_free(self, revision: int, seat: Seat) -> bool:
        """Whether nobody serves by this seat. One of this process is of a reign that is over."""
        if seat.address is None or seat.holder == self._holder:
            return True
        if self._watched[0] != revision:
            self._watched = (revision, self._clock())
        return self._clock() - self._watched[1] >= LEASE_S

    def _take(self, found: EtcdValue | None, seat: Seat | None, above: int) -> Reign | None:
        before = seat or Seat(holder="", address=None, epoch=0)
        own = Seat(
            holder=self._holder,
            address=self._address,
            epoch=max(before.epoch, above) + 1,
            nodes=before.nodes,
        )
        self._revision = 0 if found is None else found.revision
        asked = self._clock()
        done, _ = self._put(own)
        if not done:
            return None
        self._seat = own
        return Reign(epoch=own.epoch, nodes=own.nodes, until=asked + LEASE_S - MARGIN_S)

    def _put(self, seat: Seat) -> tuple[bool, EtcdValue | None]:
        """Put the seat over that of `_revision`."""
        done, found = self._etcd.put_if(
            self._key, seat.to_bytes(), revision=self._revision, timeout_s=ASK_S
        )
        if done and found is not None:
            self._revision = found.revision
        return done, found

    def _read(self, found: EtcdValue | None) -> Seat | None:
        if found is None:
            return None
        return Seat.from_bytes(found.value, f"{self._key} in {self._etcd.url}")


def _is_same(held: Seat, own: Seat) -> bool:
    return (held.holder, held.epoch, held.address) == (own.holder, own.epoch, own.address)
