"""Runs a node: joins the master, serves, and leaves when told to or when it is drained."""

import logging
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from inlay.core.errors import ConfigError, StoreError
from inlay.core.units import format_bytes
from inlay.serve.api_key import check_api_key
from inlay.serve.doctor.store import read_store_room
from inlay.serve.http_server import bind
from inlay.serve.store.config import is_loopback
from inlay.store import Contribution, Disk, Store
from inlay.store.address import join_address
from inlay.store.administration import Administration
from inlay.store.metrics import NodeCollector
from inlay.store.survey import Survey

LOOK_S = 0.5
MIN_MEMORY_BYTES = 1 << 20
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,126}")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """The configuration of `inlay store node`.

    Attributes:
        master: as `inlay.store.address.parse_masters` takes it.
        disk: behind the memory.
        name: what the store knows it by.
        keep: what lies in its memory is there for the next process of that name.
        failure_domain: replicas of one object go to different ones; None: the host.
        listen: of its transfer engine.
        timeout_s: how long to wait for the master at the start.
        metrics: host and port of `/metrics` over HTTP; None: there is none.
        api_key: if set, `/metrics` needs `Authorization: Bearer <api_key>`.
    """

    master: str
    memory_bytes: int
    disk: Disk | None
    name: str
    keep: bool
    failure_domain: str | None
    listen: str
    token: bytes
    timeout_s: float
    metrics: tuple[str, int] | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        check_api_key(self.api_key)
        if NAME.fullmatch(self.name) is None:
            raise ConfigError(
                f"--name is {self.name!r}: it must have 1 to 127 letters, digits, '-', '_' or '.', "
                "and not begin with '.'; leave it out to take the host's name"
            )
        if self.metrics and self.api_key is None and not is_loopback(self.metrics[0]):
            raise ConfigError(
                f"metrics at {self.metrics[0]} are for whoever reaches it: give an --api-key, or "
                "let them be at 127.0.0.1"
            )
        if self.memory_bytes < MIN_MEMORY_BYTES:
            raise ConfigError(
                f"--memory is {format_bytes(self.memory_bytes)}: it must be at least "
                f"{format_bytes(MIN_MEMORY_BYTES)}"
            )


def run_node(config: NodeConfig, say: Callable[[str], None]) -> None:
    """Contribute until a stop signal, or until the node is drained.

    Raises:
        StoreError: the master cannot be reached, or refuses the node.
        ResourceError: the system has not so much shared memory.
    """
    contribution = Contribution(
        memory=config.memory_bytes,
        name=config.name,
        failure_domain=config.failure_domain,
        keep=config.keep,
        disk=config.disk,
    )
    listener = None
    if config.metrics is not None:
        listener = bind(*config.metrics, option="--metrics HOST:{port}")
    with (
        Store.connect(
            config.master,
            contribute=contribution,
            token=config.token,
            listen=config.listen,
            timeout_s=config.timeout_s,
        ) as store,
        Administration(config.master, config.token, timeout_s=2.0) as administration,
        ExitStack() as stack,
    ):
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):  # before, they end the waiting for a master
            signal.signal(number, lambda *_: stop.set())
        if listener is not None:
            stack.enter_context(_metrics_of(store, administration, listener, config))
            say(f"metrics at http://{join_address(*listener.getsockname()[:2])}/metrics")
        say(
            f"node {config.name}: {_told(contribution)} for the store at "
            f"{administration.address}, {store.adopted_objects} objects found; Ctrl-C ends it"
        )
        drained = _wait(stop, config.name, administration)
    if drained:
        shutil.rmtree(Path(read_store_room().directory) / config.name, ignore_errors=True)
    say(f"node {config.name} left" + (", drained" if drained else ""))


def _metrics_of(
    store: Store, administration: Administration, listener: socket.socket, config: NodeConfig
) -> AbstractContextManager[None]:
    from inlay.serve.store.node_metrics import serving_metrics  # it imports the web framework

    def survey() -> Survey | None:
        try:
            return administration.survey()
        except StoreError:  # there is no master now
            return None

    collector = NodeCollector(config.name, survey, store.disk_figures)
    return serving_metrics(listener, collector, config.api_key)


def _told(contribution: Contribution) -> str:
    memory = format_bytes(contribution.memory_bytes)
    disk = contribution.disk
    return (
        memory if disk is None else f"{memory} and {format_bytes(disk.size_bytes)} of {disk.path}"
    )


def _wait(stop: threading.Event, name: str, administration: Administration) -> bool:
    """Until it is told to end; whether that is since it was drained."""
    while not stop.wait(LOOK_S):
        try:
            own = [node for node in administration.survey().nodes if node.name == name]
            if own and own[0].draining and administration.drain(name).done:
                return True
        except StoreError as error:  # native threads join the next master
            logger.debug("%s", error)
    return False
