"""Runs a master: becomes it, serves while it is, and stops when another one is.

The server is native. A thread of this module settles who is master, and tells the server until when
it may answer, before it has to: a process that was stopped for a while and goes on answers nothing
it should not. HTTP runs beside it, on the main thread.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from inlay.core.errors import InlayError, StoreError, StoreUnavailable
from inlay.serve.http_server import StopSignals, bind, http_server
from inlay.serve.store.config import MasterConfig
from inlay.store.address import join_address
from inlay.store.election import RENEW_S, Election, Seat, boot_time
from inlay.store.epoch_file import EpochFile
from inlay.store.master_server import MasterServer
from inlay.store.succession import Reign, Succession
from inlay.store.survey import Survey

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Serving:
    """A reign that goes on."""

    reign: Reign
    server: MasterServer


class MasterProcess:
    """What this process is: a standby, or the master with its server.

    Attributes:
        serving: the reign, or None while this process is no master.
        seat: who else is master, as it was seen last.
        failure: why it ended by itself.
        over: set when it ended, by itself or because it was told to.
    """

    def __init__(self, config: MasterConfig) -> None:
        self.config = config
        self.serving: Serving | None = None
        self.seat: Seat | None = None
        self.failure: BaseException | None = None
        self.over = threading.Event()
        self._stop = threading.Event()
        self._succession = self._make_succession()
        self._thread = threading.Thread(target=self._run, name="inlay-master", daemon=True)

    def start(self) -> None:
        """Become master as soon as that may be."""
        self._thread.start()

    def stop(self) -> None:
        """Serve no more; the next master need not wait."""
        self._stop.set()
        self._thread.join()

    def survey(self) -> Survey | None:
        """The store's state, or None while this process is no master."""
        serving = self.serving
        if serving is None:
            return None
        try:
            return serving.server.survey()
        except StoreError:  # it was stopped meanwhile
            return None

    def server(self) -> MasterServer:
        """The master's server.

        Raises:
            StoreUnavailable: this process is no master; the message says who is.
        """
        serving = self.serving
        if serving is None:
            where = "" if self.seat is None else f"; the master is at {self.seat.address}"
            raise StoreUnavailable(f"this process is a standby, and no master{where}")
        return serving.server

    def _make_succession(self) -> Succession:
        config = self.config
        if config.cluster is None:
            return EpochFile(config.state)
        address = config.advertise or join_address(*config.listen)
        return Election(config.cluster, address, on_wait=self._see)

    def _see(self, seat: Seat) -> None:
        self.seat = seat
        logger.info(
            "standby: another process is master", extra={"at": seat.address, "epoch": seat.epoch}
        )

    def _run(self) -> None:
        try:
            above = 0
            while not self._stop.is_set():
                reign = self._succession.begin(self._stop, above=above)
                if reign is None:
                    break
                above = self._serve(reign)
        except BaseException as error:  # told by the main thread
            self.failure = error
        finally:
            self._succession.end()
            self.over.set()

    def _serve(self, reign: Reign) -> int:
        """Serve for one reign; the greatest epoch that was seen."""
        server = MasterServer(self.config.listen, self.config.tenants, reign, self.config.policy)
        try:
            self.serving = Serving(reign=reign, server=server)
            logger.info("master", extra={"at": server.address, "epoch": reign.epoch})
            why = self._keep(server, reign)
        finally:
            self.serving = None
            server.stop()
        if why:
            logger.warning("master no more: %s", why, extra={"epoch": reign.epoch})
        return max(reign.epoch, server.epoch_seen)

    def _keep(self, server: MasterServer, reign: Reign) -> str:
        """Until this process is to stop, or is master no more; says why."""
        until, failing = reign.until, False
        silent_ms = 1000 * self.config.policy.node_timeout_s
        while not self._stop.wait(RENEW_S):
            if server.epoch_seen > reign.epoch:
                return (
                    f"epoch {server.epoch_seen} was seen elsewhere: this one begins again above it"
                )
            try:
                found = server.survey()
                nodes = {node.name for node in found.nodes if node.silent_ms <= silent_ms}
                if found.recovering:  # should it end now, the next one waits for them, too
                    nodes.update(reign.nodes)
                renewed = self._succession.renew(sorted(nodes))
            except InlayError as error:
                if not failing:
                    logger.warning("%s; the master goes on while it may", error)
                failing = True
            else:
                if renewed is None:
                    return "another process took over"
                until, failing = renewed, False
                server.serve_until(until)
            if boot_time() >= until:
                return "it could not be renewed in time"
        return ""


def run_master(config: MasterConfig, say: Callable[[str], None]) -> None:
    """Serve until a stop signal.

    Raises:
        AddressInUseError: another process listens there.
        StoreUnavailable: another master has the file of the epoch.
    """
    # Taken for a moment: whether it can be had is to be known now, not when this one is elected.
    bind(*config.listen, option="--listen HOST:{port}").close()
    listener = None if config.admin is None else bind(*config.admin, option="--admin HOST:{port}")
    process = MasterProcess(config)
    try:
        asyncio.run(_serve_admin(process, listener, say))
    finally:
        process.stop()
    if process.failure is not None:
        raise process.failure
    say("stopped")


async def _serve_admin(
    process: MasterProcess, listener: socket.socket | None, say: Callable[[str], None]
) -> None:
    stop = StopSignals()
    began_s = time.monotonic()
    async with AsyncExitStack() as stack:
        stack.enter_context(stop.installed())
        if listener is not None:
            from inlay.serve.store.admin import create_admin_app

            await stack.enter_async_context(http_server(listener, create_admin_app(process)))
            say(f"administration at http://{join_address(*listener.getsockname()[:2])}")
        process.start()
        told: Serving | None = None
        while not stop.asked.is_set() and not process.over.is_set():
            serving = process.serving
            if serving is not None and serving is not told:
                say(
                    f"master at {serving.server.address}, epoch {serving.reign.epoch} "
                    f"(ready in {time.monotonic() - began_s:.1f} s)"
                )
            told = serving
            await asyncio.sleep(0.05)
