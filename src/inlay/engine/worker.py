"""An engine in a process of its own: `python -m inlay.engine.worker`.

Reads its setup from standard input, loads the model, then serves messages of `core.messages` and
`core.instance_messages` until standard input is closed or its parent is gone. It is started by
`EngineClient`, for one front; or by a launcher (`inlay.serve.instance`), as an instance that any
number of dispatchers connect to, and then says on standard output how far it is
(`core.instance_setup`). Without work it sleeps in `poll` and uses no CPU.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import zmq

from inlay.core.clock import SystemClock
from inlay.core.errors import (
    ConfigError,
    EngineError,
    EngineStartError,
    InlayError,
    WeightsConflictError,
)
from inlay.core.failures import failure_message
from inlay.core.instance_messages import KvLost, KvTarget, SetRole, Subscribe, ToInstance
from inlay.core.instance_news import InstanceNews, new_run_id
from inlay.core.instance_peers import Peer, Peers
from inlay.core.instance_setup import Bound, Failed, InstanceLine, Ready
from inlay.core.instance_socket import listen_for_dispatchers, new_socket
from inlay.core.launcher_lines import speak_to_launcher
from inlay.core.log import configure_logging, parse_log_setting
from inlay.core.messages import (
    AdapterAnswer,
    CancelRequest,
    GenerateRequest,
    LoadAdapter,
    LoadProgress,
    PausedRollouts,
    PauseRollouts,
    PauseSession,
    ResetPrefixCache,
    ResumeRollouts,
    ResumeSession,
    Rollout,
    RolloutHandle,
    ServedWeights,
    StatsRequest,
    SwapWeights,
    UnloadAdapter,
    WeightsSwapped,
)
from inlay.core.openmp import let_openmp_sleep
from inlay.core.parent_watch import ParentWatch
from inlay.core.settings import read_settings
from inlay.engine.instance import EngineNews
from inlay.engine.weight_source import PulledWeights, WeightSource
from inlay.engine.wire import START_FAILED, WorkerSetup, front_address

if TYPE_CHECKING:
    from inlay.engine.engine import Engine

log = logging.getLogger(__name__)
_TELL_S = 1.0
_FLUSH_S = 1.0  # for blocks that were computed last; within the grace


class _Server:
    """The loop between socket and engine."""

    def __init__(
        self,
        engine: "Engine",
        peers: Peers,
        poller: zmq.Poller,
        watch: ParentWatch,
        *,
        front: Peer | None,
        instance: InstanceNews | None,
        source: WeightSource | None,
    ) -> None:
        self._engine = engine
        self._peers = peers
        self._poller = poller
        self._watch = watch
        self._fronts = [] if front is None else [front]
        self._instance = instance
        self._told = LoadProgress(loaded_bytes=0, total_bytes=0, seconds=0.0, over=False)
        self._adapters_of: dict[str, Peer] = {}  # who waits for an adapter to be loaded
        self._decode = msgspec.msgpack.Decoder(ToInstance).decode
        self._swappers: list[Peer] = []
        self._source = source
        self._pulling: tuple[Peer, SwapWeights, Future[PulledWeights]] | None = None

    def run(self) -> InlayError | None:
        """Serve until the parent wants no more; an error where the engine cannot go on."""
        from inlay.models.memory import give_back_freed  # while the engine loads its parts

        self._tell_progress()
        give_back_freed()
        self._peers.send(self._fronts, self._engine.info)
        while not self._watch.stopping.is_set():
            if not self._engine.has_work:
                self._sleep()
            worked = self._receive() or self._engine.has_work
            self._take_pulled()
            outputs = self._engine.step()
            swapped = self._engine.take_swapped()
            if swapped and self._instance is not None:
                self._instance.introduce()  # before anybody is refused for the old ones
            self._peers.deliver(outputs)
            failure = self._engine.failure
            if failure is not None:
                self._peers.deliver(self._engine.step())  # requests are told first
                return failure
            for message in self._engine.take_kv_messages():
                self._peers.deliver_kv(message)
            for one in swapped:
                self._peers.send(self._swappers, one)
                self._swappers.clear()
                self._keep()
            if self._instance is not None:
                self._instance.after_step(worked)
            if not self._told.over:
                self._tell_progress()
            for answer in self._engine.adapters.take_answers():
                self._peers.send([self._adapters_of.pop(answer.name)], answer)
            for request_id in self._peers.take_orphans():
                self._engine.cancel(request_id)
        return None

    def _tell_progress(self) -> None:
        """Say how far loading is, now and then."""
        told, now = self._told, self._engine.load_progress
        if now.over or now.seconds - told.seconds >= _TELL_S or told.total_bytes == 0:
            self._told = now
            self._peers.send([*self._fronts, *self._peers.subscribers], now)

    def _sleep(self) -> None:
        sleeps = [self._engine.sleep_s]
        if self._instance is not None:
            sleeps.append(self._instance.sleep_s)
        sleep_s = min((limit for limit in sleeps if limit is not None), default=None)
        self._poller.poll(None if sleep_s is None else int(1000 * sleep_s) + 1)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._watch.wake)

    def _receive(self) -> bool:
        """Handle all messages that are there; False if there was none."""
        received = self._peers.receive()
        if received is None:
            return False
        while received is not None:
            peer, data = received
            try:
                message = self._decode(data)
            except (msgspec.MsgspecError, RecursionError) as error:
                self._peers.refuse_unread(peer, data, error)
            else:
                self._handle(peer, message)
            received = self._peers.receive()
        return True

    def _handle(self, peer: Peer, message: ToInstance) -> None:
        match message:
            case GenerateRequest():
                self._peers.take(peer, message, self._engine.add)
            case CancelRequest(request_id):
                self._engine.cancel(self._peers.engine_id(peer, request_id))
            case StatsRequest():
                self._peers.send([peer], self._engine.stats())
            case ResetPrefixCache():
                self._engine.reset_prefix_cache()
            case PauseSession(session):
                self._peers.send([peer], self._engine.pause_session(session))
            case ResumeSession(session):
                self._peers.send([peer], self._engine.resume_session(session))
            case LoadAdapter(name, path):
                try:
                    self._engine.adapters.begin(name, path)
                except InlayError as error:
                    self._peers.send([peer], AdapterAnswer(name, error.code, str(error)))
                else:
                    self._adapters_of[name] = peer
            case UnloadAdapter(name):
                try:
                    self._engine.adapters.unload(name)
                except InlayError as error:
                    self._peers.send([peer], AdapterAnswer(name, error.code, str(error)))
                else:
                    self._peers.send([peer], AdapterAnswer(name))
            case SwapWeights():
                self._swap(peer, message)
            case PauseRollouts(request_ids):
                ids = None if request_ids is None else list(self._engine.find(request_ids))
                self._answer_rollouts(peer, self._engine.pause_rollouts(ids))
            case ResumeRollouts():
                self._resume_rollouts(peer, message)
            case KvTarget():
                request_id = self._peers.engine_id(peer, message.request_id)
                self._engine.kv_target(msgspec.structs.replace(message, request_id=request_id))
            case KvLost(request_id, reason):
                self._engine.kv_lost(self._peers.engine_id(peer, request_id), reason)
            case Subscribe() if self._instance is not None:
                self._instance.subscribe(peer, message)
            case SetRole(role) if self._instance is not None:
                self._instance.set_role(role)
            case _:
                log.error("%s is for instances only, and this is none", type(message).__name__)

    def _swap(self, peer: Peer, message: SwapWeights) -> None:
        """Begin a swap, once its weights are on this machine."""
        here = PulledWeights(directory=Path(message.directory), held_at="")
        if self._source is None or not message.holders or os.path.isdir(here.directory):
            self._begin_swap(peer, message, here)
        elif self._pulling is not None:
            version = self._pulling[1].version
            error = WeightsConflictError(
                f"weights {version} are being pulled: update again when they are there"
            )
            self._refuse_swap(peer, message, error)
        else:
            future = self._source.pull(message.version, message.holders)
            self._pulling = peer, message, future
            future.add_done_callback(lambda _: os.eventfd_write(self._watch.wake, 1))

    def _take_pulled(self) -> None:
        """Go on with a swap whose weights have come."""
        if self._pulling is None or not self._pulling[2].done():
            return
        peer, message, future = self._pulling
        self._pulling = None
        try:
            pulled = future.result()
        except InlayError as error:
            self._refuse_swap(peer, message, error)
        except Exception as error:
            log.exception("weights %s cannot be pulled", message.version)
            failure = EngineError(f"weights {message.version} cannot be pulled: {error!r}")
            self._refuse_swap(peer, message, failure)
        else:
            self._begin_swap(peer, message, pulled)

    def _begin_swap(self, peer: Peer, message: SwapWeights, weights: PulledWeights) -> None:
        """Begin a swap; its end is told after the step that comes next to it."""
        told = ServedWeights(message.version, message.directory, message.asked_s, weights.held_at)
        try:
            self._engine.begin_swap(
                weights.directory, message.version, message.in_flight, told=told
            )
        except InlayError as error:
            self._refuse_swap(peer, message, error)
            self._keep()
        else:
            self._swappers.append(peer)

    def _refuse_swap(self, peer: Peer, message: SwapWeights, error: InlayError) -> None:
        refusal = WeightsSwapped(
            version=message.version, seconds=0.0, error=str(error), error_code=error.code
        )
        self._peers.send([peer], refusal)

    def _keep(self) -> None:
        """Hold on to no pulled weights but those that serve."""
        if self._source is not None and self._pulling is None and not self._swappers:
            self._source.keep(self._engine.served_weights.version)

    def _resume_rollouts(self, peer: Peer, message: ResumeRollouts) -> None:
        handles = refused = None
        if message.handles is not None:
            handles, refused = self._named_handles(message.handles)
        if refused:
            self._peers.send([peer], PausedRollouts(refused=tuple(refused)))
        elif message.only_ask:
            self._answer_rollouts(
                peer, [Rollout(request_id=one.request_id) for one in handles or ()]
            )
        else:
            resumed = self._engine.resume_rollouts(handles, message.kv)
            self._answer_rollouts(peer, [Rollout(request_id=one) for one in resumed])

    def _named_handles(
        self, handles: Sequence[RolloutHandle]
    ) -> tuple[list[RolloutHandle], list[str]]:
        """Those that are here, as requests are named here, and why they do not go on."""
        here: dict[str, list[str]] = {}
        for request_id, name in self._engine.find(one.request_id for one in handles).items():
            here.setdefault(name, []).append(request_id)
        named = [
            RolloutHandle(request_id, handle.version)
            for handle in handles
            for request_id in here.get(handle.request_id, ())
        ]
        refused = self._engine.refused_rollouts(named)
        if self._instance is None:  # they can be nowhere else
            refused += [f"{one} has ended" for one in handles if one.request_id not in here]
        return named, refused

    def _answer_rollouts(self, peer: Peer, rollouts: Sequence[Rollout]) -> None:
        named = tuple(
            msgspec.structs.replace(one, request_id=self._peers.request_id(one.request_id))
            for one in rollouts
        )
        self._peers.send([peer], PausedRollouts(rollouts=named))


class _Worker:
    """One life of the process, once its setup is known.

    Args:
        say: tells the launcher, if there is one.
        source: of weights that lie elsewhere; closed here.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        say: Callable[[InstanceLine], None],
        source: WeightSource | None,
    ) -> None:
        self._setup = setup
        self._say = say
        self._source = source
        self._watch = ParentWatch(setup.parent_pid, self._remove_directory)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = new_socket(self._context, zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else those who are gone were not noticed
        self._clock = SystemClock()
        self._peers = Peers(self._socket, self._clock)
        self._run_id = new_run_id()
        self._address = ""

    def run(self) -> int:
        """Load, serve until the end, and say why if it comes early; returns the exit status."""
        try:
            failure = self._serve()
        except Exception as error:
            log.exception("the engine's process ends")
            failure = EngineError(f"the engine's process failed: {error!r}")
        if failure is not None:
            while self._peers.receive() is not None:  # those who came meanwhile are told, too
                pass
            self._peers.send(self._peers.everyone, failure_message(failure))
            self._say(Failed(code=failure.code, message=str(failure)))
        self._socket.close()
        self._context.term()
        self._remove_directory()  # the parent tidies up, too, unless it was killed
        return 0 if failure is None else START_FAILED

    def _serve(self) -> InlayError | None:
        setup, config, front = self._setup.instance, self._setup.config, None
        if self._setup.directory is not None:
            front = self._peers.connect_front(front_address(self._setup.directory))
        wake = self._watch.wake
        try:
            if setup is not None:
                self._address = listen_for_dispatchers(self._socket, setup, config.cache.secret)
                self._say(Bound(address=self._address, run_id=self._run_id, pid=os.getpid()))
            from inlay.engine.engine import Engine  # loads torch; the parent is watched by now

            engine = Engine(config, clock=self._clock, on_ready=lambda: os.eventfd_write(wake, 1))
        except Exception as error:
            return _reason(error)
        instance = None
        if setup is not None:
            source = EngineNews(setup, self._run_id, engine)
            instance = InstanceNews(
                setup.name, setup.role, self._run_id, source, self._peers, self._clock
            )
            self._say(Ready(address=self._address, load_s=engine.info.load_s))
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(wake, zmq.POLLIN)
        server = _Server(
            engine,
            self._peers,
            poller,
            self._watch,
            front=front,
            instance=instance,
            source=self._source,
        )
        failure = server.run()
        engine.flush(_FLUSH_S)
        engine.close()
        if self._source is not None:
            self._source.close()
        return failure

    def _remove_directory(self) -> None:
        if self._setup.directory is not None:
            shutil.rmtree(self._setup.directory, ignore_errors=True)


def _reason(error: Exception) -> InlayError:
    """Why the engine cannot start, in one sentence."""
    if isinstance(error, InlayError):
        return error
    log.debug("the engine cannot start", exc_info=error)
    first_line = next(iter(str(error).strip().splitlines()), "")
    what = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return EngineStartError(
        f"the engine cannot start ({what}): set INLAY_LOG=debug to see where it failed"
    )


def _silent(line: InstanceLine) -> None:
    """There is no launcher: a front started this process, and hears all by its socket."""


def main(open_source: Callable[[WorkerSetup], WeightSource] | None = None) -> int:
    """Run a worker; returns the exit status.

    Args:
        open_source: from which an instance has weights that do not lie on its machine.
    """
    # The parent decides when to stop: Ctrl-C and the end of a service reach it, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    let_openmp_sleep()
    line = sys.stdin.buffer.readline()
    configure_logging(parse_log_setting(read_settings().log))
    try:
        setup = msgspec.json.decode(line, type=WorkerSetup)
    except msgspec.MsgspecError as error:
        speak_to_launcher()(
            Failed(code=ConfigError.code, message=f"the setup cannot be read: {error}")
        )
        return START_FAILED
    say = _silent if setup.instance is None else speak_to_launcher()
    return _Worker(setup, say, None if open_source is None else open_source(setup)).run()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking torch and its threads down in order would cost a second or two
