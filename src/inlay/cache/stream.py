"""Sends the KV of prompts to other instances while it is computed, and receives what they send.

The step loop owns this, as it owns the `KvCache`; a thread (`stream_thread.py`) moves the bytes.

Sending (an instance that computes prompts for others): `begin` when a request comes, `aim` when its
target is known, `chunk` before each step that computes some of it, with the hook `layer_done` for
the layers of that step, and `end` when all is computed. Receiving (an instance that decodes):
`reserve` pages, tell their `KvTarget`, and wait. Where ranks share the model, each sends and
receives its heads of every page, and all are driven from here.

Source: layer-wise prefill of Mooncake (arXiv 2407.00079, section 5.2).
"""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from inlay.cache.kv_cache import KvCache, PageHold
from inlay.cache.other_rank import OtherRank
from inlay.cache.outgoing import Outgoing
from inlay.cache.rank_pages import OwnPages, RankPages
from inlay.cache.stream_thread import Mark, Piece, Sending, StreamThread
from inlay.core.errors import InlayError
from inlay.core.instance_messages import KvLost, KvSent, KvTarget, RankTarget
from inlay.core.messages import KvRoute
from inlay.transfer import TransferEngine

SEGMENT = "kv"

_Pages = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class _Sent:
    """The step loop's side of what is sent of a prompt.

    Attributes:
        pinned: pages that stay as they are until the thread has told of the prompt.
        rest: once all is computed: pages of the blocks that were not sent before.
        given_up: nobody waits for it any more.
    """

    sending: Sending
    pinned: "array[int]" = field(default_factory=lambda: array("i"))
    rest: _Pages | None = None
    given_up: bool = False


@dataclass(slots=True, eq=False)
class Incoming:
    """Pages that wait for the KV of a prompt.

    Attributes:
        target: what the sender is to know.
        hold: the pages, those that were there already among them.
        cached_tokens: what the sender did not compute for it; set when it has come.
        error: why it will not come.
    """

    target: KvTarget
    hold: PageHold
    cached_tokens: int = 0
    error: str = ""


class KvStream:
    """See the module. No call waits, but `close`, and `reserve` for the other ranks.

    Args:
        engine: of this instance; closed here.
        own: the pages of this process.
        others: those of the other ranks, in order.
        cache: whose pages they are.
        guarded: whether pages take grants; else those that a peer may have written to are kept from
            use until its transfers must have ended.
        on_ready: called from the thread when `poll` has something to take.
    """

    def __init__(
        self,
        engine: TransferEngine,
        own: OwnPages,
        others: Sequence[OtherRank],
        cache: KvCache,
        *,
        guarded: bool,
        on_ready: Callable[[], None] | None,
    ) -> None:
        self.address = engine.address
        self._ranks: tuple[RankPages, ...] = (own, *others)
        self._cache = cache
        self._sent: dict[Outgoing, _Sent] = {}
        self._incoming: dict[str, Incoming] = {}
        self._returning: set[PageHold] = set()  # until nothing can land there any more
        self._step: list[tuple[_Sent, range, _Pages]] = []
        self._thread = StreamThread(engine, own, others, guarded=guarded, on_ready=on_ready)

    @property
    def due(self) -> bool:
        """Whether `poll` has something to take."""
        return bool(self._thread.done)

    def holds(self) -> list[PageHold]:
        """Pages in use here, besides those of running requests; for audits."""
        return [
            *self._returning,
            *(incoming.hold for incoming in self._incoming.values()),
        ]

    def routes(self) -> tuple[KvRoute, ...]:
        """The paths by which KV goes to other instances."""
        return self._thread.routes()

    def poll(self) -> tuple[list[Outgoing], list[Incoming]]:
        """Prompts that have been sent, or could not be, and those that have come, or will not."""
        sent: list[Outgoing] = []
        come: list[Incoming] = []
        while self._thread.done:
            match self._thread.done.popleft():
                case PageHold() as hold:
                    self._returning.remove(hold)
                    self._cache.release(hold)
                case Outgoing() as outgoing:
                    over = self._sent.pop(outgoing)
                    self._cache.unpin(over.pinned)
                    if not over.given_up:
                        sent.append(outgoing)
                case KvSent(request_id, cached_tokens):
                    incoming = self._incoming.pop(request_id, None)
                    if incoming is not None:
                        incoming.cached_tokens = cached_tokens
                        come.append(incoming)
                case KvLost(request_id, reason):
                    incoming = self.abandon(request_id)
                    if incoming is not None:
                        incoming.error = reason
                        come.append(incoming)
        return sent, come

    def close(self) -> None:
        """Leave all peers. What is under way fails."""
        self._thread.close()

    # Sending

    def begin(self, request_id: str, num_tokens: int) -> Outgoing:
        """A prompt will be computed here for another instance."""
        outgoing = Outgoing(request_id, num_tokens, self._cache.page_tokens)
        self._sent[outgoing] = _Sent(self._thread.start(outgoing))
        return outgoing

    def aim(self, outgoing: Outgoing, target: KvTarget) -> None:
        """Its target is known. Raises ValueError where it does not fit."""
        outgoing.aim(target)
        sent = self._sent.get(outgoing)
        if sent is not None:
            self._thread.aim(sent.sending)
            if sent.rest is not None:
                self._send_rest(outgoing, sent)

    def chunk(self, outgoing: Outgoing, hold: PageHold, start: int, stop: int) -> None:
        """The next step computes tokens start..stop in the pages of `hold`."""
        sent = self._sent.get(outgoing)
        if sent is None or outgoing.target is None:
            return
        parts = outgoing.take_parts(start, stop)
        if parts.whole:
            self._put(sent, parts.whole, self._pin(sent, hold, parts.whole), None, None)
        if parts.layered:
            pages = self._pin(sent, hold, parts.layered)
            self._step.append((sent, parts.layered, pages))

    @property
    def streams_step(self) -> bool:
        """Whether the layers of the next step are to be told."""
        return bool(self._step)

    def layer_done(self, layer: int, mark: Mark | None) -> None:
        """A layer's KV is in the pages, or will be when `mark` returns."""
        for sent, blocks, pages in self._step:
            self._put(sent, blocks, pages, layer, mark)

    def step_done(self) -> None:
        """All layers of the step have been told."""
        self._step.clear()

    def end(self, outgoing: Outgoing, hold: PageHold) -> None:
        """All is computed, and in `hold`, which may be released."""
        sent = self._sent.get(outgoing)
        if sent is not None:
            rest = range(outgoing.next_block, outgoing.num_blocks)
            sent.rest = self._pin(sent, hold, rest)
            if outgoing.target is not None:
                self._send_rest(outgoing, sent)

    def give_up(self, outgoing: Outgoing) -> None:
        """Send no more of it; `poll` does not return it."""
        sent = self._sent.get(outgoing)
        if sent is not None and not sent.given_up:
            sent.given_up = True
            self._thread.stop(sent.sending)

    def _send_rest(self, outgoing: Outgoing, sent: _Sent) -> None:
        assert sent.rest is not None
        blocks = outgoing.take_parts(outgoing.num_tokens, outgoing.num_tokens).whole
        if blocks:
            pages = sent.rest[len(sent.rest) - len(blocks) :]
            self._put(sent, blocks, pages, None, None)
        self._thread.put(sent.sending, None)

    def _pin(self, sent: _Sent, hold: PageHold, blocks: range) -> _Pages:
        pages = hold.pages[blocks.start : blocks.stop]
        self._cache.pin(pages)
        sent.pinned += pages
        return np.array(pages, np.int64)

    def _put(
        self, sent: _Sent, blocks: range, pages: _Pages, layer: int | None, mark: Mark | None
    ) -> None:
        self._thread.put(sent.sending, Piece(blocks, pages, layer, mark))

    # Receiving

    def reserve(self, request_id: str, hold: PageHold, num_tokens: int) -> Incoming:
        """Let another instance write to the pages of `hold` that have no name yet.

        Raises:
            InlayError: another rank does not answer, or refuses; nothing is reserved.

        Cost: a message there and back for each other rank, about 1 ms.
        """
        first = hold.num_named
        pages = np.frombuffer(hold.pages[first:], np.int32)
        own, *others = self._grant(pages)
        target = KvTarget(
            request_id=request_id,
            address=own.address,
            segment=SEGMENT,
            grant=own.grant,
            first_block=first,
            pages=pages.astype("<u4").tobytes(),
            num_tokens=num_tokens,
            ticket=request_id,
            others=tuple(others),
        )
        incoming = self._incoming[request_id] = Incoming(target, hold)
        self._thread.expect(request_id, tuple(rank.grant for rank in target.ranks))
        return incoming

    def _grant(self, pages: npt.NDArray[np.int32]) -> list[RankTarget]:
        granted: list[RankTarget] = []
        try:
            for rank in self._ranks:
                granted.append(RankTarget(rank.address, rank.grant(pages)))
        except InlayError:
            for rank, target in zip(self._ranks, granted, strict=False):
                rank.revoke(target.grant)
            raise
        return granted

    def abandon(self, request_id: str) -> Incoming | None:
        """Wait no longer. The pages come back when nothing can land there any more."""
        incoming = self._incoming.pop(request_id, None)
        if incoming is not None:
            self._returning.add(incoming.hold)
            self._thread.abandon(request_id, incoming.hold)
        return incoming
