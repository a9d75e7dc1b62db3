"""Prompts that one instance computes for another: the engine's side of `inlay.cache.stream`.

The instance that computes a prompt sends pages as they fill and keeps the request until all have
landed. The one that decodes reserves pages, says where they are, and schedules the request when
they have come; if they do not come, it schedules it as any other. Called by the step loop only.

Instances that do both may wait for each other: each has given its pages to prompts that the other
is to compute. So one that can compute nothing, though choices wait for pages, soon waits no longer
for others, and computes these prompts itself, one after the other until it can go on.
"""

import logging
from collections.abc import Iterable

import msgspec

from inlay.cache import Incoming, KvCache, KvStream, Mark, Outgoing, PageHold
from inlay.core.clock import Clock
from inlay.core.errors import EngineError, InlayError, OutOfPagesError, RequestError
from inlay.core.instance_messages import KvLost, KvTarget, nothing_wanted
from inlay.core.messages import GenerateRequest, KvRoute, SamplingParams
from inlay.core.token_ids import TOKEN_BYTES, pack_token_ids
from inlay.engine.live import Choice
from inlay.engine.scheduler import Chunk, Scheduler

log = logging.getLogger(__name__)

_PATIENCE_S = 0.5  # without a step; prompts that are being computed elsewhere come meanwhile
_NEXT_S = 0.1  # until the next one is given up: its pages are back in a few milliseconds


def prefill_part(message: GenerateRequest) -> GenerateRequest:
    """What the instance does that computes a prompt for another: all known tokens but the last.

    Raises:
        RequestError: there is nothing to compute, or the request cannot be divided.
    """
    begun = message.produced[0] if len(message.produced) == 1 else ()
    prompt = (message.prompt + pack_token_ids(begun or ()))[:-TOKEN_BYTES]
    if not prompt or len(message.produced) > 1:
        raise RequestError(
            f"a request of {message.num_tokens} prompt tokens and {len(message.produced)} "
            "begun choices cannot be divided between instances: send it to one"
        )
    params = SamplingParams(temperature=0.0, max_tokens=0)
    return msgspec.structs.replace(message, prompt=prompt, params=params, produced=())


class Exchange:
    """See the module.

    Args:
        stream: moves the bytes; closed here.
        cache: of the instance.
        scheduler: gets choices whose KV has come.
        clock: of the engine.
    """

    def __init__(
        self, stream: KvStream, cache: KvCache, scheduler: Scheduler, clock: Clock
    ) -> None:
        self._stream = stream
        self._cache = cache
        self._scheduler = scheduler
        self._clock = clock
        self._still = False  # nothing could be done in the last step
        self._patient_until_s: float | None = None  # while choices wait for pages
        self._sending: dict[str, Choice] = {}
        self._crowded: dict[str, Choice] = {}  # wait for pages to reserve
        self._receiving: dict[str, Choice] = {}
        self._messages: list[KvTarget | KvLost] = []

    @property
    def address(self) -> str:
        """Where other instances send KV."""
        return self._stream.address

    @property
    def due(self) -> bool:
        """Whether there is something to do before the next step."""
        return self._stream.due or (bool(self._crowded) and not self._still) or self.sleep_s == 0.0

    @property
    def sleep_s(self) -> float | None:
        """For how long others are waited for if nothing happens; None: for ever."""
        until_s = self._patient_until_s
        return None if until_s is None else max(0.0, until_s - self._clock.now())

    def holds(self) -> list[PageHold]:
        """Pages in use here, besides those of running requests; for audits."""
        return self._stream.holds()

    def routes(self) -> tuple[KvRoute, ...]:
        """The paths by which KV goes to other instances."""
        return self._stream.routes()

    def take_messages(self) -> list[KvTarget | KvLost]:
        """Where prompts are to go that others compute, and which are not waited for any more."""
        messages, self._messages = self._messages, []
        return messages

    def poll(self) -> list[tuple[Choice, InlayError | None]]:
        """Go on with what has happened since the last call; what has come is queued.

        Returns:
            Choices whose prompt has landed elsewhere; with an error, why it has not.
        """
        ended: list[tuple[Choice, InlayError | None]] = []
        sent, come = self._stream.poll()
        for outgoing in sent:
            ended.append((self._sending.pop(outgoing.request_id), _failure(outgoing)))
        for incoming in come:
            self._arrived(self._receiving.pop(incoming.target.request_id), incoming)
        if self.sleep_s == 0.0:
            self._give_way()
        if not (self._still and self._scheduler.num_waiting):  # what comes free is for those first
            for choice in list(self._crowded.values()):
                if not self._reserve(choice):
                    break  # in order of arrival
                del self._crowded[choice.request.request_id]
        return ended

    def end_step(self, *, still: bool) -> None:
        """All of a step is done; `still`: nothing was computed, and nothing comes from a tier."""
        self._still = still
        if not self._crowded and not (self._scheduler.num_waiting and self._receiving):
            self._patient_until_s = None
        elif not still or self._patient_until_s is None:
            self._patient_until_s = self._clock.now() + _PATIENCE_S

    # An instance that computes prompts for others

    def send(self, choice: Choice) -> None:
        """A choice of `prefill_part` is about to be queued."""
        request = choice.request
        choice.outgoing = self._stream.begin(request.request_id, len(request.prompt))
        self._sending[request.request_id] = choice

    def aim(self, target: KvTarget) -> None:
        """The instance that decodes has said where the KV of a prompt goes.

        Raises:
            ValueError: the target does not fit the prompt.
        """
        choice = self._sending.get(target.request_id)
        if choice is None:
            return  # cancelled meanwhile
        assert choice.outgoing is not None
        self._stream.aim(choice.outgoing, target)

    def before_step(self, chunks: Iterable[Chunk]) -> bool:
        """Send what a step's chunks follow; True if `layer_done` is to be called in the step."""
        for chunk in chunks:
            outgoing, hold = chunk.choice.outgoing, chunk.choice.hold
            if outgoing is not None and hold is not None:
                self._stream.chunk(outgoing, hold, chunk.start, chunk.stop)
        return self._stream.streams_step

    def layer_done(self, layer: int, mark: Mark | None) -> None:
        """See `KvStream.layer_done`."""
        self._stream.layer_done(layer, mark)

    def after_step(self) -> None:
        """All layers of the step are computed, or will not be."""
        self._stream.step_done()

    def computed(self, choice: Choice) -> None:
        """All of a prompt is computed: its pages are kept until they are sent."""
        outgoing, hold = choice.outgoing, choice.hold
        assert outgoing is not None and hold is not None
        outgoing.cached_tokens = choice.request.cached_tokens
        self._stream.end(outgoing, hold)
        self._scheduler.remove(choice)
        choice.state = "sending"

    # An instance that decodes what others computed

    def receive(self, choice: Choice) -> None:
        """Reserve pages for a choice's known tokens but the last, when there is room."""
        choice.state = "receiving"
        if self._crowded or not self._reserve(choice):
            self._crowded[choice.request.request_id] = choice
            self._still = False

    def lost(self, request_id: str, reason: str) -> None:
        """The KV of a prompt will not come: it is computed here."""
        choice = self._crowded.pop(request_id, None)
        if choice is None:
            choice = self._receiving.pop(request_id, None)
            if choice is None:
                return  # it has come, or was cancelled
            self._stream.abandon(request_id)
        log.warning("the prompt of %s is computed here: %s", request_id, reason)
        self._scheduler.add(choice)

    def drop(self, choice: Choice) -> None:
        """A choice ends, whatever it waits for."""
        request_id = choice.request.request_id
        if self._receiving.pop(request_id, None) is not None:
            self._stream.abandon(request_id)
        self._crowded.pop(request_id, None)
        if choice.outgoing is not None and self._sending.pop(request_id, None) is not None:
            self._stream.give_up(choice.outgoing)

    def close(self) -> None:
        """Leave all peers. What is under way fails."""
        self._stream.close()

    def _give_way(self) -> None:
        """Compute one prompt here that another instance was to compute.

        Of those that have pages the last one, if others wait for pages here. Else the first that
        waits for pages to reserve: whoever has computed it keeps it in pages until then.
        """
        if self._scheduler.num_waiting and self._receiving:
            choice = max(self._receiving.values(), key=lambda one: one.sort_key)
        elif self._crowded:
            choice = next(iter(self._crowded.values()))
        else:
            return  # those that waited were cancelled since
        request_id = choice.request.request_id
        reason = f"for {_PATIENCE_S:g} s no page came free, and nothing could be computed"
        self._messages.append(KvLost(request_id, reason))
        self.lost(request_id, reason)
        self._patient_until_s = self._clock.now() + _NEXT_S

    def _reserve(self, choice: Choice) -> bool:
        """Whether pages could be reserved. Those that running choices may soon need are left."""
        request_id = choice.request.request_id
        num_tokens, page_tokens = choice.num_tokens - 1, self._cache.page_tokens
        choice.name_blocks(num_tokens, page_tokens)
        match = self._cache.match_prefix(choice.names, num_tokens)
        if num_tokens - match.num_tokens <= page_tokens:
            # As quick to compute in a step that runs anyway.
            self._messages.append(nothing_wanted(request_id))
            self._scheduler.add(choice)
            return True
        counts = self._cache.counts()
        spare = len(self._scheduler.running)
        needed = -(-num_tokens // page_tokens) - match.num_blocks
        if self._scheduler.running and needed + spare > counts.free + counts.idle:
            return False
        try:
            hold = self._cache.hold(match, num_tokens)
        except OutOfPagesError:
            return False
        try:
            incoming = self._stream.reserve(request_id, hold, num_tokens)
        except InlayError as error:
            self._cache.release(hold)
            log.warning("the prompt of %s is computed here: %s", request_id, error)
            self._messages.append(KvLost(request_id, str(error)))
            self._scheduler.add(choice)
            return True
        choice.request.cached_tokens = match.num_tokens
        self._messages.append(incoming.target)
        self._receiving[request_id] = choice
        return True

    def _arrived(self, choice: Choice, incoming: Incoming) -> None:
        if incoming.error:
            log.warning("a prompt is computed here: %s", incoming.error)
            self._messages.append(KvLost(choice.request.request_id, incoming.error))
        else:
            request = choice.request
            request.cached_tokens = max(request.cached_tokens, incoming.cached_tokens)
            choice.hold, choice.computed = incoming.hold, choice.num_tokens - 1
        self._scheduler.add(choice)


def _failure(outgoing: Outgoing) -> InlayError | None:
    if outgoing.error is None:
        return None
    return EngineError(f"the KV of a prompt could not be sent: {outgoing.error}")
