"""Keeps an engine's entry alive while the engine lives."""

import contextlib
import logging
import socket
import threading
import time

from inlay.core.ending import Ending
from inlay.core.errors import EndpointError
from inlay.transfer.directory.base import ASK_S, LEASE_S, Directory, Entry, check_name

logger = logging.getLogger(__name__)


class Keeper:
    """Publishes an entry and renews it from a thread of its own, which mostly sleeps.

    A directory that does not answer is asked again: transfers need it only to find new peers. The
    thread ends when another engine takes the name.

    Raises:
        ArgumentError: a name that cannot be.
        EndpointError: the directory does not take the entry.
    """

    def __init__(self, directory: Directory, name: str, engine_id: str, address: str) -> None:
        self._directory = directory
        self._name = check_name(name)
        self._entry = Entry(id=engine_id, started_ns=time.time_ns(), addresses=(address,))
        self._ending = Ending()
        directory.publish(name, self._entry)
        self._thread = threading.Thread(target=self._run, name=f"inlay-name-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, which withdraws the entry. Waits for both as long as a directory may take
        that does not answer; what it keeps then ends with the lease. Finalizers may call it, also
        in the middle of that thread, and there it does not wait.
        """
        self._ending.say()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * ASK_S)

    def _run(self) -> None:
        failing = False
        while not self._ending.heard(LEASE_S / 3):
            try:
                if not self._directory.renew(self._name, self._entry):
                    logger.warning("another engine took the name %s", self._name)
                    return
                failing = False
            except EndpointError as error:
                if not failing:
                    logger.warning("%s; the entry of %s may end", error, self._name)
                failing = True
        with contextlib.suppress(EndpointError):
            self._directory.withdraw(self._name, self._entry)


def reachable_address(address: str, towards: Directory) -> str:
    """An engine's address as others see it: where it listens on all of this host's addresses, the
    one that leads to the directory.

    Raises:
        EndpointError: no way leads there.
    """
    host, _, port = address.rpartition(":")
    if host not in ("0.0.0.0", "[::]"):
        return address
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(towards.server)  # sends nothing
            return f"{probe.getsockname()[0]}:{port}"
    except OSError as error:
        raise towards.unreachable(error) from error
