"""The thread of a `KvStream`: an event loop that talks to `inlay.transfer`.

The step loop gives it pieces to send and grants to take back; what it has to say is in `done`.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from inlay.cache.kv_cache import PageHold
from inlay.cache.other_rank import OtherRank
from inlay.cache.outgoing import Outgoing
from inlay.cache.rank_messages import TOPIC as RANK_TOPIC
from inlay.cache.rank_messages import PageWrite
from inlay.cache.rank_pages import LAND_S, OwnPages, RankPages
from inlay.core.errors import InlayError, TransferTimeoutError
from inlay.core.instance_messages import KvLost, KvSent
from inlay.core.messages import KvRoute
from inlay.transfer import TransferEngine

log = logging.getLogger(__name__)

_TOPIC = "kv"
_AIM_S = 60.0  # how long a prompt that is computed waits for its target
_COME_S = 600.0  # for a prompt to be computed elsewhere; a lost peer is noticed much sooner
_JOIN_S = 5.0
_MOST_PAGES = 512  # of one write: its ranges take some MiB where heads are divided

Mark = Callable[[], None]
"""Waits until a device has done what it was told so far."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks of one prompt and the pages that they are in: all of their layers, or one.

    The pages stay as they are until the thread has told of the prompt.
    """

    blocks: range
    pages: npt.NDArray[np.int64]
    layer: int | None
    mark: Mark | None


@dataclass(slots=True, eq=False)
class Sending:
    """What of one prompt is to be sent; touched by the thread alone."""

    pieces: "asyncio.Queue[Piece | None]" = field(default_factory=asyncio.Queue)
    aimed: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None


@dataclass(slots=True)
class _Expected:
    grants: tuple[int, ...]
    timer: asyncio.TimerHandle
    revoking: "asyncio.Task[None] | None" = None


Done = Outgoing | PageHold | KvSent | KvLost
"""A prompt that is sent or failed, pages that are free of the transfer, a prompt that has come or
will not come in time."""


class StreamThread:
    """See the module. Public methods are for the step loop; none of them waits, but `close`.

    Args:
        engine: of this instance; closed here.
        own: the pages of this process.
        others: those of the other ranks, in order.
        guarded: whether pages take grants.
        on_ready: called from the thread when something of `done` is to be taken soon.

    Attributes:
        done: what happened, for the step loop to take.
    """

    def __init__(
        self,
        engine: TransferEngine,
        own: OwnPages,
        others: Sequence[OtherRank],
        *,
        guarded: bool,
        on_ready: Callable[[], None] | None,
    ) -> None:
        self._engine = engine
        self._ranks: tuple[RankPages, ...] = (own, *others)
        self._others = {other.engine_id: other for other in others}
        self._guarded = guarded
        self._on_ready = on_ready
        self.done: deque[Done] = deque()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._expected: dict[str, _Expected] = {}
        self._thread = threading.Thread(target=self._run, name="inlay-kv-stream", daemon=True)
        self._thread.start()

    def start(self, outgoing: Outgoing) -> Sending:
        """Be ready to send a prompt."""
        sending = Sending()
        self._call(self._start, outgoing, sending)
        return sending

    def aim(self, sending: Sending) -> None:
        """The target of the prompt is set."""
        self._call(sending.aimed.set)

    def put(self, sending: Sending, piece: Piece | None) -> None:
        """Send a piece; None: there will be no more."""
        self._call(sending.pieces.put_nowait, piece)

    def stop(self, sending: Sending) -> None:
        """Send no more of it; what is under way is cancelled, and then the prompt told of."""
        self._call(self._stop, sending)

    def expect(self, request_id: str, grants: tuple[int, ...]) -> None:
        """A prompt will come; when it has, the ranks' grants are taken back before `done` tells of
        it.
        """
        self._call(self._expect, request_id, grants)

    def abandon(self, request_id: str, hold: PageHold) -> None:
        """A prompt that is expected is not wanted; `done` tells when the pages of `hold` are free.

        It may have come meanwhile, and be in `done`.
        """
        self._call(lambda: self._spawn(self._abandon(request_id, hold)))

    def routes(self) -> tuple[KvRoute, ...]:
        """The engine's paths to other instances."""
        ranks = {rank.address for rank in self._ranks}
        return tuple(
            KvRoute(
                peer=path.peer,
                transport=path.transport,
                state=path.state,
                reason=path.reason,
                size_bytes=path.written_bytes,
                retries=sum(path.retries.values()),
                bandwidth_gbs=path.bandwidth_gbs,
            )
            for path in self._engine.paths()
            if path.peer not in ranks
        )

    def close(self) -> None:
        """End the thread and leave all peers. What is under way fails."""
        self._call(self._loop.stop)
        self._thread.join(_JOIN_S)
        self._engine.close()

    def _call(self, function: Callable[..., object], *args: object) -> None:
        self._loop.call_soon_threadsafe(function, *args)

    # In the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._spawn(self._listen())
        self._loop.run_forever()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait(self._tasks))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _tell(self, done: Done) -> None:
        self.done.append(done)
        if self._on_ready is not None:
            self._on_ready()

    def _start(self, outgoing: Outgoing, sending: Sending) -> None:
        sending.task = self._spawn(self._send(outgoing, sending))
        # Not at the end of the work: it may be cancelled before it begins.
        sending.task.add_done_callback(lambda _: self._tell(outgoing))

    def _stop(self, sending: Sending) -> None:
        assert sending.task is not None
        sending.task.cancel()

    async def _send(self, outgoing: Outgoing, sending: Sending) -> None:
        landing: set[asyncio.Task[None]] = set()
        try:
            await self._send_pieces(outgoing, sending, landing)
        except (InlayError, OSError) as error:
            outgoing.error = error
        finally:
            for task in landing:
                task.cancel()
            await asyncio.gather(*landing, return_exceptions=True)

    async def _send_pieces(
        self, outgoing: Outgoing, sending: Sending, landing: "set[asyncio.Task[None]]"
    ) -> None:
        try:
            async with asyncio.timeout(_AIM_S):
                await sending.aimed.wait()
        except TimeoutError:
            raise TransferTimeoutError(
                f"no instance said in {_AIM_S:g} s where the KV of {outgoing.request_id} goes"
            ) from None
        target = outgoing.target
        assert target is not None
        peer = await asyncio.to_thread(self._engine.connect, target.address)
        while (piece := await sending.pieces.get()) is not None:
            for write in _writes(outgoing, piece):
                for rank in self._ranks:
                    landing.add(asyncio.create_task(self._land(rank, write, piece.mark)))
        await asyncio.gather(*landing)
        sent = msgspec.msgpack.encode(KvSent(target.ticket, outgoing.cached_tokens))
        await asyncio.to_thread(peer.send, _TOPIC, sent)

    async def _land(self, rank: RankPages, write: PageWrite, mark: Mark | None) -> None:
        if mark is not None:
            await asyncio.to_thread(mark)
        await rank.write(write)

    async def _listen(self) -> None:
        async for message in self._engine.messages():
            if message.topic == RANK_TOPIC and message.engine_id in self._others:
                self._others[message.engine_id].hear(message)
            if message.topic != _TOPIC:
                continue
            try:
                sent = msgspec.msgpack.decode(message.body, type=KvSent)
            except msgspec.MsgspecError:
                log.exception("a message of another instance cannot be read")
            else:
                self._spawn(self._arrived(sent))

    # Prompts that are expected

    def _expect(self, request_id: str, grants: tuple[int, ...]) -> None:
        lost = KvLost(request_id, f"it did not come in {_COME_S:g} s")
        timer = self._loop.call_later(_COME_S, self._tell, lost)
        self._expected[request_id] = _Expected(grants, timer)

    async def _arrived(self, sent: KvSent) -> None:
        expected = self._expected.get(sent.ticket)
        if expected is not None and expected.revoking is None:
            await self._settle(sent.ticket, expected)
            self._tell(sent)

    async def _abandon(self, request_id: str, hold: PageHold) -> None:
        expected = self._expected.get(request_id)
        if expected is not None:
            if expected.revoking is None and not self._guarded:
                await asyncio.sleep(LAND_S)  # no transfer takes longer
            await self._settle(request_id, expected)
        self._tell(hold)

    async def _settle(self, request_id: str, expected: _Expected) -> None:
        expected.timer.cancel()
        if expected.revoking is None:
            expected.revoking = self._spawn(self._revoke(expected))
        await expected.revoking
        self._expected.pop(request_id, None)

    async def _revoke(self, expected: _Expected) -> None:
        """Pages are used again only when nothing can land in them any more."""
        for rank, grant in zip(self._ranks, expected.grants, strict=True):
            while not await asyncio.to_thread(rank.revoke, grant):
                log.warning("pages are kept from use: another instance may still write to them")


def _writes(outgoing: Outgoing, piece: Piece) -> Iterator[PageWrite]:
    """What each rank is to send of a piece."""
    assert outgoing.target is not None
    here, there = piece.pages.astype("<u4"), outgoing.remote(piece.blocks).astype("<u4")
    for at in range(0, len(here), _MOST_PAGES):
        yield PageWrite(
            pages=here[at : at + _MOST_PAGES].tobytes(),
            remote_pages=there[at : at + _MOST_PAGES].tobytes(),
            layer=piece.layer,
            segment=outgoing.target.segment,
            ranks=outgoing.target.ranks,
        )
