"""The way to the master, wherever it is now."""

import logging
import threading
import time
import weakref

from inlay.core.ending import Ending
from inlay.core.errors import (
    EndpointError,
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreVersionError,
)
from inlay.store import _backend
from inlay.store.address import Cluster, numeric_addresses, parse_masters
from inlay.store.election import ASK_S, POLL_S, look_up_master

IDLE_S = 1.0

logger = logging.getLogger(__name__)


class Link:
    """A connection to the master that is made again when it is lost, by native threads.

    Of a cluster, etcd is asked where the master is: every `POLL_S` while there is no connection,
    else every `IDLE_S`.

    Args:
        masters: `host:port`, a list of them, or `etcd://host:2379/cluster`.
        timeout_s: how long to wait for a master that answers.

    Raises:
        ConfigError: masters of another form.
        StoreUnavailable: no master answers in time, or with another token or version; etcd does not
            answer.

    Attributes:
        native: the compiled link.
    """

    def __init__(self, masters: str, token: bytes, *, timeout_s: float) -> None:
        found = parse_masters(masters)
        ending = Ending()
        self._end = weakref.finalize(self, ending.say)
        self._thread: threading.Thread | None = None
        if not isinstance(found, Cluster):
            # Names are looked up once: the loop that connects must not wait for name servers.
            self.native = _backend.remote_link(numeric_addresses(found), token, timeout_s)
            return
        address, self.native = _connect(found, token, timeout_s)
        # It keeps nothing of this object, which may be forgotten without being closed.
        self._thread = threading.Thread(
            target=_follow,
            args=(found, address, self.native, ending),
            name="inlay-store-finder",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Look for the master no more. The connection ends with the last who uses it.

        Waits for the thread as long as etcd may take that does not answer: its end may be the end
        of the connection, in which a process that exits meanwhile would be aborted.
        """
        self._end()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(2 * ASK_S)


def _connect(cluster: Cluster, token: bytes, timeout_s: float) -> tuple[str, _backend.Link]:
    """The master's address and a link to it: what etcd says may be a master that has just died."""
    etcd, end = cluster.etcd(), time.monotonic() + timeout_s
    problem: StoreError = StoreUnavailable(
        f"{cluster} has no master: start one with inlay store master --etcd {cluster}"
    )
    while (left := end - time.monotonic()) > 0:
        try:
            address = look_up_master(cluster, etcd, timeout_s=min(ASK_S, left))
        except EndpointError as error:
            problem = StoreUnavailable(f"no master can be found: {error}")
            address = None
        if address is not None:
            try:
                return address, _backend.remote_link(_numeric(address), token, min(ASK_S, left))
            except (StoreRefused, StoreVersionError):
                raise
            except (StoreTimeout, StoreUnavailable) as error:
                problem = error
        time.sleep(POLL_S)
    raise problem


def _follow(cluster: Cluster, address: str, link: _backend.Link, ending: Ending) -> None:
    """Tell the link when the master is elsewhere."""
    etcd, failing, looked = cluster.etcd(), False, time.monotonic()
    while not ending.heard(POLL_S):
        if link.connected and time.monotonic() - looked < IDLE_S:
            continue
        looked = time.monotonic()
        try:
            found = look_up_master(cluster, etcd)
            numeric = [] if found is None else _numeric(found)
            failing = False
        except (EndpointError, StoreUnavailable) as error:
            if not failing:
                logger.warning("%s; the store goes on with the master at %s", error, address)
            failing = True
            continue
        if found is not None and found != address:
            logger.info("another master", extra={"at": found, "before": address})
            _backend.set_addresses(link, numeric)
            address = found


def _numeric(address: str) -> list[str]:
    """What etcd says, as the compiled link takes it."""
    host, _, port = address.rpartition(":")
    return numeric_addresses([(host.strip("[]"), int(port))])
