"""Speaks to dispatchers for a foreign engine, as an instance of Inlay's would.

One proxy is for one life of its engine: when that is gone, or was started again, the proxy ends,
and whoever keeps it running starts another one, which waits for the engine.
"""

import asyncio
import contextlib
import logging

import msgspec
import zmq

from inlay.connect.foreign.about import About
from inlay.connect.foreign.dialect import Dialect
from inlay.connect.foreign.event_feed import EventFeed
from inlay.connect.foreign.http import EngineHttp
from inlay.connect.foreign.names import BlockNames
from inlay.connect.foreign.requests import Requests
from inlay.connect.foreign.setup import ProxySetup
from inlay.connect.foreign.watch import EngineWatch
from inlay.core.clock import Clock
from inlay.core.errors import InlayError, WeightsError
from inlay.core.instance_messages import (
    InstanceInfo,
    KvChange,
    LoadReport,
    Role,
    SetRole,
    StepSample,
    Subscribe,
    ToInstance,
)
from inlay.core.instance_news import InstanceNews
from inlay.core.instance_peers import Peer, Peers
from inlay.core.messages import (
    CancelRequest,
    EngineStats,
    GenerateRequest,
    LoadProgress,
    PausedRollouts,
    PauseRollouts,
    PauseSession,
    ResumeRollouts,
    ResumeSession,
    SessionBlocks,
    StatsRequest,
    SwapWeights,
    WeightsSwapped,
)

log = logging.getLogger(__name__)


class Proxy:
    """One life of one engine, from when it answers until it is gone.

    Args:
        http: connections to it.
        peers: of the socket that dispatchers connect to.
        socket: theirs.
        run_id: of this process.
    """

    def __init__(
        self,
        setup: ProxySetup,
        dialect: Dialect,
        http: EngineHttp,
        about: About,
        *,
        context: "zmq.Context[zmq.Socket[bytes]]",
        socket: "zmq.Socket[bytes]",
        peers: Peers,
        run_id: str,
        clock: Clock,
    ) -> None:
        self._setup = setup
        self._dialect = dialect
        self._http = http
        self._about = about
        self._socket = socket
        self._peers = peers
        self._run_id = run_id
        self._wake = asyncio.Event()
        self._stopped = False
        self._failure: InlayError | None = None
        self._decode = msgspec.msgpack.Decoder(ToInstance).decode
        self._names = BlockNames(about.key_of, about.engine.page_tokens)
        self._requests = Requests(
            dialect,
            http,
            about,
            self._names,
            clock,
            changed=self._wake.set,
            died=lambda error: self._engine.check(error),
        )
        self._engine = EngineWatch(
            dialect, http, lambda: len(self._requests.times.choices), self._end
        )
        source = about.facts.source
        self._feed = (
            None if source is None else EventFeed(context, source, self._names, self._wake.set)
        )
        self._news = InstanceNews(
            setup.instance.name, setup.instance.role, run_id, self, peers, clock
        )

    def stop(self) -> None:
        """Let `run` return."""
        self._stopped = True
        self._wake.set()

    async def run(self) -> InlayError | None:
        """Serve until told to stop; why it ends, where the engine did."""
        loop = asyncio.get_running_loop()
        fd = self._socket.fileno()
        loop.add_reader(fd, self._wake.set)
        watching = asyncio.ensure_future(self._engine.run())
        self._wake.set()
        try:
            while not self._stopped and self._failure is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._news.sleep_s):
                        await self._wake.wait()
                self._wake.clear()
                self._turn()
        finally:
            loop.remove_reader(fd)
            watching.cancel()
            if self._feed is not None:
                self._feed.close()
            await self._requests.close()
        return self._failure

    def _turn(self) -> None:
        """Hear what dispatchers say, and tell them what there is to tell."""
        worked = False
        while (received := self._peers.receive()) is not None:
            worked = True
            self._handle(*received)
        outputs = self._requests.take()
        self._peers.deliver(outputs)
        self._news.after_step(worked or bool(outputs))
        for request_id in self._peers.take_orphans():
            self._requests.cancel(request_id)
        # Sending may consume the edge that announces a message (ZMQ_FD is edge-triggered).
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._wake.set()

    def _handle(self, peer: Peer, data: bytes) -> None:
        try:
            message = self._decode(data)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._peers.refuse_unread(peer, data, error)
            return
        match message:
            case GenerateRequest():
                self._peers.take(peer, message, self._requests.add)
            case CancelRequest(request_id):
                self._requests.cancel(self._peers.engine_id(peer, request_id))
            case StatsRequest():
                self._peers.send([peer], self._stats())
            case PauseSession(session) | ResumeSession(session):
                self._peers.send([peer], SessionBlocks(session, 0, 0))
            case Subscribe():
                self._news.subscribe(peer, message)
            case SetRole(role):
                self._news.set_role(role)
            case SwapWeights(_, version):
                self._peers.send([peer], _has_its_own(version))
            case PauseRollouts() | ResumeRollouts():
                self._peers.send([peer], PausedRollouts())
            case _:
                log.debug("%s is nothing for this engine", type(message).__name__)

    # What there is to tell: `core.instance_news.NewsSource`

    def info(self, role: Role) -> InstanceInfo:
        """What the engine is."""
        return self._about.info(self._setup.instance, self._run_id, role)

    @property
    def load_progress(self) -> LoadProgress:
        """It has loaded: it answers."""
        return LoadProgress(loaded_bytes=0, total_bytes=0, seconds=0.0, over=True)

    def digests(self) -> bytes:
        """All blocks that it has."""
        return b"".join(self._names.digests())

    def record(self, on: bool) -> None:
        """What came before is in the snapshot."""
        self._names.take_changes()
        self._requests.times.take()

    def take_changes(self) -> tuple[KvChange, ...]:
        """What became of its blocks."""
        return self._names.take_changes()

    def take_samples(self) -> tuple[StepSample, ...]:
        """Its steps."""
        return self._requests.times.take()

    def load_report(self, samples: tuple[StepSample, ...] = ()) -> LoadReport:
        """How loaded it is: requests of ours as they are now, those of others as it said last."""
        choices = self._requests.times.choices
        running, waiting = self._queue()
        total, free, cached = self._pages()
        return LoadReport(
            run_id=self._run_id,
            waiting=waiting,
            running=running,
            receiving=0,
            prefill_tokens=sum(choice.todo for choice in choices),
            context_tokens=sum(one.context for one in choices if one.begun_s is not None),
            pages_total=total,
            pages_free=free,
            pages_cached=cached,
            samples=samples,
        )

    def _queue(self) -> tuple[int, int]:
        """Requests that run and wait."""
        own, gauges = len(self._requests.times.choices), self._engine.gauges
        others = max(0, gauges.running + gauges.waiting - self._engine.own)
        waiting = min(gauges.waiting, own + others)
        return own + others - waiting, waiting

    def _pages(self) -> tuple[int, int, int]:
        """Pages in all, free, and those with blocks that no request uses; of our size."""
        total = self._about.engine.num_pages
        used = min(total, round(self._engine.gauges.usage * total))
        cached = max(0, min(total - used, self._names.num_held - used))
        return total, total - used - cached, cached

    def _stats(self) -> EngineStats:
        running, waiting = self._queue()
        total, free, cached = self._pages()
        requests = self._requests
        return EngineStats(
            running=running,
            waiting=waiting,
            pages_total=total,
            pages_free=free,
            pages_cached=cached,
            prefix_query_tokens=requests.prompt_tokens,
            prefix_hit_tokens=requests.cached_tokens,
            prompt_tokens=requests.prompt_tokens,
            generated_tokens=requests.generated_tokens,
        )

    def _end(self, error: InlayError) -> None:
        self._failure = self._failure or error
        self._wake.set()


def _has_its_own(version: str) -> WeightsSwapped:
    """The answer to an update of weights."""
    return WeightsSwapped(
        version=version,
        seconds=0.0,
        error="an engine of another system gets its weights by that system's means",
        error_code=WeightsError.code,
    )
