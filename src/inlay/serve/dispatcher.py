"""The process of a dispatcher: `python -m inlay.serve.dispatcher`, started by a supervisor.

It reads its setup from standard input, connects to instances while it imports what HTTP needs,
prints one line when it listens, and serves what `inlay serve` serves. Nothing that it knows is
kept: a restarted one hears all of it again from the supervisor and the instances.
"""

import asyncio
import dataclasses
import gc
import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import zmq

from inlay.cluster.admission import Admission, AdmissionConfig
from inlay.cluster.chooser import Chooser
from inlay.cluster.control import Member, Roster
from inlay.cluster.dispatcher import Dispatcher, DispatcherConfig
from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.cluster.policies import DEFAULT_POLICY, RoleConfig, RolePlanner, make_policy
from inlay.cluster.roster_link import RosterLink
from inlay.cluster.setup import (
    START_FAILED,
    DispatcherFailed,
    DispatcherLine,
    DispatcherReady,
    DispatcherSetup,
)
from inlay.cluster.slo import SloClass, SloClasses
from inlay.cluster.stalls import StallWatch
from inlay.cluster.store_index import StoreIndex
from inlay.core.clock import SystemClock
from inlay.core.errors import ConfigError, EngineStartError, InlayError, NoInstanceError
from inlay.core.instance_socket import connect_instance
from inlay.core.log import configure_logging, parse_log_setting
from inlay.core.parent_watch import ParentWatch
from inlay.core.settings import read_settings
from inlay.engine.config import EngineConfig, SchedulerConfig
from inlay.serve.cluster.calibration import timing_directory
from inlay.serve.config import ServeConfig
from inlay.serve.http_server import BACKLOG, StopSignals, bind, http_server, shown_host
from inlay.serve.weights.offers import Offers

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette

    from inlay.models.source import ModelSource
    from inlay.models.text import Text
    from inlay.serve.gate import Gate
    from inlay.serve.service import Service
    from inlay.serve.weights.updates import Updates
    from inlay.store.key_feed import KeyFeed

log = logging.getLogger(__name__)

_POLL_S = 0.05
_NO_TIME_S = 3600.0


class DispatcherProcess:
    """One dispatcher and the sockets that it lives by.

    Args:
        setup: what the supervisor wants.
        config: of the HTTP side, made of that.
    """

    def __init__(self, setup: DispatcherSetup, config: ServeConfig) -> None:
        from inlay import kernels

        self._setup = setup
        self._config = config
        self._clock = SystemClock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stored = StoreIndex() if setup.store else None
        self.chooser = make_chooser(setup, stored)
        self._feed = None if stored is None else _feed(setup.store, stored)
        self._classes = make_classes(setup)
        self._offers = Offers(config.weights.listen, setup.secret)
        self.instances = Instances(
            self.chooser,
            lambda address: connect_instance(self._context, address, setup.secret),
            secret=setup.secret.encode(),
            name=setup.name,
            clock=self._clock,
            refused=self._refused,
            met=self._met,
        )
        self.dispatcher = Dispatcher(
            self.instances,
            self.chooser,
            hash_chain=kernels.block_hash_chain,
            secret=setup.secret.encode(),
            clock=self._clock,
            classes=self._classes,
            config=DispatcherConfig(
                instance_wait_s=setup.instance_wait_s, swaps_at_once=config.weights.at_once
            ),
            drained=self._drained,
            offer=self._offer,
        )
        self._updates: Updates | None = None
        self._roster: RosterLink | None = None
        if setup.control:
            self._roster = RosterLink(
                self._context, setup.control, setup.name, self.instances.follow
            )
        else:
            _check_names(setup.members)
            self.instances.follow(Roster(number=1, members=setup.members))
        self.stalls = StallWatch(
            self.instances, self.chooser, stall_s=setup.stall_s, tell=self._stalled
        )

    def make_app(self, source: "ModelSource", text: "Text") -> "tuple[Service, Starlette]":
        """What serves requests, once the first instance has said what it is."""
        from inlay.serve.app import create_app
        from inlay.serve.cluster_metrics import ClusterCollector
        from inlay.serve.cluster_routes import ClusterRoutes
        from inlay.serve.generation_config import sampling_defaults
        from inlay.serve.service import Service
        from inlay.serve.weights.updates import Updates

        reference = self.instances.reference
        assert reference is not None
        scheduler = SchedulerConfig(
            max_running=reference.max_running,
            max_waiting=reference.max_waiting,
            max_batch_tokens=reference.max_batch_tokens,
            prefill_chunk=reference.prefill_chunk,
        )
        engine = EngineConfig(model=str(source.directory), scheduler=scheduler)
        config = dataclasses.replace(self._config, engine=engine)
        defaults = sampling_defaults(source.directory)
        service = Service(
            self.dispatcher,
            text,
            config,
            defaults=defaults,
            model_name=source.name,
            clock=self._clock,
            classes=self._classes,
        )
        service.metrics.add(ClusterCollector(self.dispatcher, self._clock))
        self._updates = Updates(
            self.dispatcher, config.weights, source.directory, service.metrics, many=True
        )
        routes = ClusterRoutes(self.dispatcher, self._clock)
        return service, create_app(service, config, routes, self._updates)

    async def plan_roles(self) -> None:
        """Ask for another role of an instance when the mix of work has shifted; never ends."""
        config = RoleConfig()
        planner = RolePlanner(config, self._classes.default)
        while True:
            await asyncio.sleep(config.period_s)
            if self._roster is None or not self.dispatcher.alive:
                continue
            change = planner.plan(self.chooser.state, self._clock.now())
            if change is not None:
                name = self.instances.at(change.slot).name
                log.info(
                    "instance %s is to be %s: load of prefill %.2f, of decode %.2f",
                    name,
                    change.role,
                    change.prefill_load,
                    change.decode_load,
                )
                self._roster.change_role(name, change.role)

    async def first_instance(self) -> None:
        """Until an instance has said what it is."""
        while True:
            try:
                await self.instances.wait(_NO_TIME_S)
            except NoInstanceError:
                continue
            return

    def close(self) -> None:
        """Leave the instances and the supervisor."""
        if self._updates is not None:
            self._updates.close()
        self.dispatcher.close()
        self._offers.close()
        if self._feed is not None:
            self._feed.close()
        if self._roster is not None:
            self._roster.close()
        self._context.term()

    async def _offer(self, directory: Path, version: str) -> str | None:
        """Offer weights to instances on other machines. Files are offered by one at a time."""
        if self._updates is not None:
            await asyncio.to_thread(self._updates.release)
        return await self._offers.offer(directory, version)

    def _refused(self, instance: Instance) -> None:
        if self._roster is not None:
            self._roster.differs(instance.name, instance.member.run, instance.difference)

    def _met(self, instance: Instance) -> None:
        if self._roster is not None and instance.info is not None:
            version = instance.info.weights.version
            self._roster.serves(instance.name, instance.member.run, version)

    def _stalled(self, instance: Instance, silent_s: float) -> None:
        if self._roster is not None:
            self._roster.stalled(instance.name, instance.member.run, silent_s)

    def _drained(self, instance: Instance) -> None:
        if self._roster is not None:
            self._roster.drained(instance.name, instance.member.run)


async def serve(setup: DispatcherSetup, listener: socket.socket, watch: ParentWatch) -> None:
    """Serve until told to stop."""
    from inlay.models.memory import give_back_freed
    from inlay.models.source import resolve_model

    config = serve_config(setup)
    stop = StopSignals()
    loop = asyncio.get_running_loop()

    def parent_is_gone() -> None:
        loop.remove_reader(watch.wake)
        stop.insist()

    loop.add_reader(watch.wake, parent_is_gone)
    async with AsyncExitStack() as stack:
        stack.enter_context(stop.installed())
        process = DispatcherProcess(setup, config)
        stack.callback(process.close)
        template = config.read_chat_template()
        source = resolve_model(setup.model, weight_format=None)
        loading = asyncio.ensure_future(asyncio.to_thread(_load_text, source.directory, template))
        stack.callback(loading.cancel)
        await asyncio.to_thread(_load_http_modules)
        from inlay.serve.gate import Gate

        gate = Gate(setup.instance_wait_s)
        gate.refusal = "no instance takes requests yet: try again in a few seconds"
        listener.listen(BACKLOG)
        server = await stack.enter_async_context(
            http_server(listener, gate, access_log=config.access_log)
        )
        host, port = listener.getsockname()[:2]
        say(DispatcherReady(f"http://{shown_host(config.host, host)}:{port}"))
        asked = asyncio.ensure_future(stop.asked.wait())
        stack.callback(asked.cancel)
        opening = asyncio.ensure_future(_open(process, gate, source, loading))
        stack.callback(opening.cancel)
        watching = asyncio.ensure_future(process.stalls.run())
        stack.callback(watching.cancel)
        if setup.roles == "auto":
            planning = asyncio.ensure_future(process.plan_roles())
            stack.callback(planning.cancel)
        await asyncio.wait((asked, opening), return_when=asyncio.FIRST_COMPLETED)
        service: Service | None = None
        if opening.done():
            service, app = opening.result()
            await stack.enter_async_context(app.router.lifespan_context(app))
            give_back_freed()
            gc.freeze()
        await asked
        await _drain(config, gate, server, service, stop)
        process.dispatcher.close()  # while answers can still say so


async def _open(
    process: DispatcherProcess,
    gate: "Gate",
    source: "ModelSource",
    loading: "asyncio.Future[Text]",
) -> "tuple[Service, Starlette]":
    text = await loading
    await process.first_instance()
    service, app = process.make_app(source, text)
    gate.open(app)
    log.info("dispatcher serves", extra={"instances": process.instances.describe()})
    return service, app


async def _drain(
    config: ServeConfig,
    gate: "Gate",
    server: "uvicorn.Server",
    service: "Service | None",
    stop: StopSignals,
) -> None:
    """Leave new connections to others, refuse new requests, let running ones end for a while."""
    for listening in server.servers:
        listening.close()
    gate.close("this dispatcher is stopping: try again")
    deadline_s = asyncio.get_running_loop().time() + config.drain_s
    while service is not None and service.active and not stop.insisted.is_set():
        if asyncio.get_running_loop().time() >= deadline_s:
            break
        await asyncio.sleep(_POLL_S)
    if service is not None:
        service.stopping = True


def _feed(masters: str, stored: StoreIndex) -> "KeyFeed":
    # The store brings the transfer engine with it, which takes long to load.
    from inlay.store.key_feed import KeyFeed

    return KeyFeed(masters, stored)


def _check_names(members: Sequence[Member]) -> None:
    names = Counter(member.name for member in members)
    for name, count in names.items():
        if count > 1:
            raise ConfigError(
                f"{count} members are named {name!r}: give each instance a name of its own"
            )


def make_chooser(setup: DispatcherSetup, stored: StoreIndex | None = None) -> Chooser:
    """The policy and what it goes by.

    Args:
        stored: what the store has; None: there is none.

    Raises:
        ConfigError: no such policy, or wrong options of it or of admission.
    """
    timing = timing_directory() if setup.timing is None else Path(setup.timing)
    policy = make_policy(setup.policy or DEFAULT_POLICY, setup.policy_options, setup.seed)
    try:
        config = AdmissionConfig(**setup.admission)
    except TypeError as error:
        raise ConfigError(f"dispatcher.admission: {error}") from None
    weights = {name: float(tenant.get("weight", 1)) for name, tenant in setup.tenants.items()}
    admission = Admission(policy, config, weights)
    return Chooser(policy, admission=admission, timing=timing, store=stored)


def make_classes(setup: DispatcherSetup) -> SloClasses:
    """Classes of objectives, and the priorities of tenants.

    Raises:
        ConfigError: an objective that is none.
    """
    found = {}
    for name, fields in setup.slo.items():
        try:
            found[name] = SloClass(**{"name": name, **fields})
        except (TypeError, ConfigError) as error:
            raise ConfigError(f"dispatcher.slo.{name}: {error}") from None
    priorities = {name: int(tenant.get("priority", 0)) for name, tenant in setup.tenants.items()}
    return SloClasses(found, priorities)


def serve_config(setup: DispatcherSetup) -> ServeConfig:
    """The configuration of the HTTP side.

    Raises:
        ConfigError: an unknown field, or a value that does not fit.
    """
    known = {field.name for field in dataclasses.fields(ServeConfig)} - {"engine", "host", "port"}
    unknown = sorted(set(setup.serve) - known)
    if unknown:
        raise ConfigError(
            f"dispatcher.serve has the unknown field {unknown[0]!r}: it may have "
            + ", ".join(sorted(known))
        )
    try:
        return msgspec.convert({**setup.serve, "host": setup.host, "port": setup.port}, ServeConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"dispatcher.serve: {error}") from None


def say(line: DispatcherLine) -> None:
    """Tell the one who started us."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def _load_http_modules() -> None:
    """Import what the HTTP side needs, while instances answer."""
    import uvicorn  # noqa: F401

    import inlay.serve.app
    import inlay.serve.gate  # noqa: F401


def _load_text(directory: Path, template: str | None) -> "Text":
    from inlay.models.text import Text

    return Text.load(directory, chat_template=template)


def main(stdin: BinaryIO | None = None) -> int:
    """Run a dispatcher; returns the exit status."""
    configure_logging(parse_log_setting(read_settings().log))
    line = (sys.stdin.buffer if stdin is None else stdin).readline()
    try:
        setup = msgspec.json.decode(line, type=DispatcherSetup)
        watch = ParentWatch(setup.parent_pid)
        with bind(setup.host, setup.port, shared=True) as listener:
            import uvloop

            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(serve(setup, listener, watch))
    except msgspec.DecodeError as error:
        say(DispatcherFailed("invalid_config", f"the setup cannot be read: {error}"))
        return START_FAILED
    except InlayError as error:
        say(DispatcherFailed(error.code, str(error)))
        return START_FAILED
    except Exception as error:
        log.exception("the dispatcher cannot go on")
        say(DispatcherFailed(EngineStartError.code, f"the dispatcher cannot go on: {error!r}"))
        return START_FAILED
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
