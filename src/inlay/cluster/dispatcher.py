"""Serves requests with the instances of a deployment, as one engine would.

    dispatcher = Dispatcher(instances, chooser, hash_chain=..., secret=...)
    instances.follow(roster)
    async for output in dispatcher.generate(request):
        ...

It has the interface of `engine.client.EngineClient`. A request goes where the chooser says; if an
instance is lost or has no room, it goes on elsewhere behind the tokens that the client has had.
"""

import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from inlay.cluster import answers
from inlay.cluster.attempts import Attempts
from inlay.cluster.chooser import Chooser
from inlay.cluster.copies import Copies
from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.cluster.kv_paths import KvPaths
from inlay.cluster.naming import HashChain, Naming
from inlay.cluster.requests import Attempt, OpenRequest, Setback
from inlay.cluster.rollouts import Rollouts
from inlay.cluster.slo import SloClasses
from inlay.cluster.swaps import Offer, Swaps, offer_nothing
from inlay.core.clock import Clock
from inlay.core.errors import (
    AdmissionError,
    ConfigError,
    EngineDiedError,
    EngineError,
    InlayError,
    NoInstanceError,
    OverloadedError,
    RequestError,
    WeightsConflictError,
)
from inlay.core.failures import error_of
from inlay.core.messages import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    InFlight,
    LoadProgress,
    RequestOutput,
    ResetPrefixCache,
    ResumeKv,
    Rollout,
    RolloutHandle,
    SessionBlocks,
    WeightsSwapped,
)

log = logging.getLogger(__name__)

_ADAPTERS_AT_START = (
    "instances of a deployment have the adapters that they were started with: write name=directory "
    "into engine.adapters of the deployment file, and start it again"
)
_UNLIMITED = 1 << 30


@dataclass(frozen=True, kw_only=True)
class DispatcherConfig:
    """Limits of a dispatcher.

    Attributes:
        max_tries: attempts of one request that may fail before the request does.
        instance_wait_s: how long a request waits while no instance takes requests.
        max_waiting: requests that wait so; one more is refused.
        swaps_at_once: instances that load new weights at a time, after the first.
    """

    max_tries: int = 4
    instance_wait_s: float = 10.0
    max_waiting: int = 1024
    swaps_at_once: int = 1

    def __post_init__(self) -> None:
        least = {"max_tries": 1, "instance_wait_s": 0, "max_waiting": 0, "swaps_at_once": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least {low}")


class Dispatcher:
    """See the module. Takes over `instances`.

    Args:
        hash_chain: names the blocks of a prompt.
        secret: of the deployment.
        classes: of objectives.
        drained: told of an instance that is draining and has nothing more of ours.
        offer: offers weights to instances on other machines.

    Attributes:
        instances: who is there.
        retries: attempts that followed another one, by the instance that had that, and why it
            ended there.
        copies: of blocks, from instance to instance.
        swaps: of weights.
    """

    def __init__(
        self,
        instances: Instances,
        chooser: Chooser,
        *,
        hash_chain: HashChain,
        secret: bytes,
        clock: Clock,
        classes: SloClasses | None = None,
        config: DispatcherConfig | None = None,
        drained: Callable[[Instance], None] = lambda instance: None,
        offer: Offer = offer_nothing,
    ) -> None:
        self.instances = instances
        self.chooser = chooser
        self.retries: Counter[tuple[str, str]] = Counter()
        self._clock = clock
        self._classes = classes or SloClasses()
        self._config = config or DispatcherConfig()
        self._naming = Naming(instances, hash_chain, secret)
        self._live: dict[str, OpenRequest] = {}
        self._num_waiting = 0
        self._attempts = Attempts(instances, chooser, clock, drained)
        self.copies = Copies(self._attempts, clock)
        self.swaps = Swaps(instances, at_once=self._config.swaps_at_once, offer=offer)
        self._rollouts = Rollouts(instances, self._live)

    @property
    def info(self) -> EngineInfo:
        """What is served; raises NoInstanceError before the first instance is there."""
        reference = self.instances.reference
        if reference is None:
            raise NoInstanceError(f"no instance was there yet ({self.instances.describe()})")
        return reference.engine

    @property
    def alive(self) -> bool:
        """Whether an instance takes requests now."""
        return self.instances.usable

    @property
    def load_progress(self) -> LoadProgress:
        """How much of the weights is in memory, of all instances together."""
        return answers.load_progress(self.instances)

    @property
    def num_waiting(self) -> int:
        """Requests that wait while no instance takes any."""
        return self._num_waiting

    @property
    def kv_paths(self) -> KvPaths:
        """Between which instances keys and values went."""
        return self._attempts.paths

    @property
    def kv_lost(self) -> int:
        """Prompts computed where they are decoded, though another instance was to."""
        return self._attempts.lost_prompts

    @property
    def reused_tokens(self) -> int:
        """Prompt tokens that chosen instances were taken to have, so far."""
        reference = self.instances.reference
        page_tokens = 0 if reference is None else reference.engine.page_tokens
        return self.chooser.log.reused_blocks * page_tokens

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput]:
        """Stream the outputs of a request, as one instance would give them.

        Closing or cancelling the iterator cancels the request, which frees its pages at once.

        Raises:
            RequestError: an instance refuses the request as written.
            AdmissionError: its objectives would not be kept.
            OverloadedError: the queues of all instances are full.
            NoInstanceError: no instance took requests in `instance_wait_s`.
            EngineError: a step failed, or instance after instance was lost.
        """
        request_id = request.request_id
        if request_id in self._live:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        live = self._live[request_id] = _begin(request)
        try:
            while True:
                attempt = live.attempt = await self._dispatch(live)
                try:
                    while isinstance(event := await attempt.events.get(), RequestOutput):
                        error = error_of(event)
                        if error is not None:
                            event = _setback(error)
                            break
                        shown = live.took(event, self._clock.now())
                        if event.finished:
                            attempt.output_tokens = live.output_tokens
                        yield shown
                        if event.finished:
                            return
                finally:
                    live.attempt = None
                    self._attempts.end(attempt)
                self._set_back(live, attempt, event)
        finally:
            del self._live[request_id]

    async def stats(self) -> EngineStats:
        """Gauges and totals of all instances together, after all messages sent so far.

        Raises:
            NoInstanceError: none answered in ten seconds.
        """
        return await answers.stats(self.instances)

    async def reset_prefix_cache(self) -> None:
        """Forget all cached blocks that no request uses; returns when all instances have.

        Raises:
            NoInstanceError: as `stats`.
        """
        for instance in self.instances:
            instance.send(ResetPrefixCache())
        await self.stats()

    async def hint_session(self, session: str, *, paused: bool) -> SessionBlocks:
        """A session waits for something else, or its next turn is near; all instances hear of it.

        Returns:
            What the instance says that knows most of it.

        Raises:
            NoInstanceError: as `stats`.
        """
        return await answers.hint_session(self.instances, session, paused=paused)

    async def load_adapter(self, name: str, path: str) -> str:
        """Not while instances run: all of them would have to.

        Raises:
            RequestError: always.
        """
        raise RequestError(_ADAPTERS_AT_START, "lora_name")

    async def unload_adapter(self, name: str) -> None:
        """As `load_adapter`."""
        raise RequestError(_ADAPTERS_AT_START, "lora_name")

    async def swap_weights(
        self, directory: Path, version: str, in_flight: InFlight = "finish"
    ) -> WeightsSwapped:
        """Have all instances serve new weights; see `Swaps.swap`."""
        return await self.swaps.swap(directory, version, in_flight)

    async def pause_rollouts(self, request_ids: Sequence[str] | None = None) -> list[Rollout]:
        """Stop requests, or all, until they are resumed; see `Rollouts.pause`."""
        return await self._rollouts.pause(request_ids)

    async def resume_rollouts(
        self, handles: Sequence[RolloutHandle] | None = None, kv: ResumeKv = "keep"
    ) -> list[str]:
        """Let paused requests, or all, go on; see `Rollouts.resume`."""
        return await self._rollouts.resume(handles, kv)

    def close(self) -> None:
        """Leave all instances. Requests that are open end with `EngineDiedError`."""
        self._config = DispatcherConfig(max_tries=1, instance_wait_s=0.0)
        self.copies.close()
        self.swaps.close()
        self._rollouts.close()
        self.instances.close()

    # A request's way

    async def _wait_for_instance(self) -> None:
        if self._num_waiting >= self._config.max_waiting:
            raise OverloadedError(
                f"{self._num_waiting} requests wait for an instance, the limit is "
                f"{self._config.max_waiting}: try again later",
                self.instances.retry_after_s,
            )
        self._num_waiting += 1
        try:
            await self.instances.wait(self._config.instance_wait_s)
        finally:
            self._num_waiting -= 1

    async def _dispatch(self, live: OpenRequest) -> Attempt:
        """Choose where a request goes, and send it there."""
        while True:
            while live.paused is not None or not self.instances.usable:
                await (self._wait_for_instance() if live.paused is None else live.paused.wait())
            self._naming.name(live)
            view = self._view(live)
            decision = self._choose(live, view)
            if decision is None:
                if live.refused_by:
                    raise live.refusal
                continue
            copies = not live.message.kv_weights  # what has such KV is for nobody else
            if copies and decision.copy is not None and not live.copied:
                # Once: what has come, or has not, is seen by the next choice.
                live.copied = True
                await self.copies.run(decision.copy, live, self.info.page_tokens)
                continue
            if copies and decision.replicate is not None:
                self.copies.ahead(decision.replicate, live, self.info.page_tokens)
            if decision.preempt is not None:
                self._attempts.make_room(decision)
            return self._attempts.start(live, view, decision)

    def _choose(self, live: OpenRequest, view: RequestView) -> Decision | None:
        """None where nobody can take it."""
        full = [
            one.slot
            for one in (self.instances if live.refused_by else ())
            if one.slot is not None and one.info is not None and one.info.run_id in live.refused_by
        ]
        excluded = [*self.instances.weights.others(live.message.weights), *full]
        decision = self.chooser.choose(
            live.message.request_id,
            view,
            self._clock.now(),
            excluded=excluded,
            # What has begun is not refused: its client has had a part of the answer.
            admit=not live.setbacks,
            divisible=live.divisible,
        )
        if decision is not None and decision.refusal is not None:
            raise AdmissionError(decision.refusal.reason, decision.refusal.retry_after_s)
        return decision

    def _view(self, live: OpenRequest) -> RequestView:
        message = live.message
        return RequestView(
            num_tokens=live.num_tokens,
            digests=live.digests,
            max_output_tokens=message.params.max_tokens or _UNLIMITED,
            priority=message.priority,
            tenant=message.cache_salt,
            slo=self._classes.of(message),
        )

    def _set_back(self, live: OpenRequest, attempt: Attempt, setback: Setback) -> None:
        """An attempt ended before its request did: raises if there is no other one."""
        request_id = live.message.request_id
        live.setbacks.append(setback)
        info = attempt.decode.info
        if setback.why == "paused":
            return
        if setback.why == "refused" and info is not None:
            live.refused_by.add(info.run_id)
        if all(tokens is None for tokens in live.produced):
            raise EngineError(f"request {request_id} was lost at its last token: {setback.error}")
        if setback.why == "failed" or live.tries >= self._config.max_tries:
            raise setback.error
        self.retries[attempt.decode.name, setback.why] += 1
        log.warning(
            "request goes on elsewhere",
            extra={"request": request_id, "attempt": attempt.wire_id, "reason": setback.error},
        )


def _begin(request: GenerateRequest) -> OpenRequest:
    params = request.params
    if params.seed is None:  # drawn here, so that any instance continues the same text
        params = msgspec.structs.replace(params, seed=secrets.randbits(63))
        request = msgspec.structs.replace(request, params=params)
    return OpenRequest(request, [[] for _ in range(max(1, params.n))])


def _setback(error: InlayError) -> Setback:
    """What an instance's refusal means: another one may have room, or be there to stay."""
    if isinstance(error, OverloadedError):
        return Setback(error, "refused")
    if isinstance(error, WeightsConflictError):
        return Setback(error, "weights")
    return Setback(error, "lost" if isinstance(error, EngineDiedError) else "failed")
