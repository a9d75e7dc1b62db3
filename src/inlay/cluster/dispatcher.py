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
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

import msgspec

from inlay.cluster import answers
from inlay.cluster.attempts import Attempts
from inlay.cluster.chooser import Chooser
from inlay.cluster.copies import Copies
from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.instance import Instance
from inlay.cluster.instances import Instances
from inlay.cluster.kv_paths import KvPaths
from inlay.cluster.requests import Attempt, OpenRequest, Setback
from inlay.cluster.slo import SloClasses
from inlay.core.block_hash import ROOT
from inlay.core.clock import Clock
from inlay.core.errors import (
    AdapterNotFoundError,
    AdmissionError,
    ConfigError,
    EngineDiedError,
    EngineError,
    InlayError,
    NoInstanceError,
    OverloadedError,
    RequestError,
)
from inlay.core.failures import error_of
from inlay.core.messages import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    LoadProgress,
    RequestOutput,
    ResetPrefixCache,
    SessionBlocks,
)
from inlay.core.near_names import did_you_mean

log = logging.getLogger(__name__)

HashChain = Callable[[bytes, bytes, bytes, int], bytes]
"""Of namespace key, parent digest, packed token ids and block length: names of full blocks."""

_MAX_SALTS = 1024
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
    """

    max_tries: int = 4
    instance_wait_s: float = 10.0
    max_waiting: int = 1024

    def __post_init__(self) -> None:
        for name, low in (("max_tries", 1), ("instance_wait_s", 0), ("max_waiting", 0)):
            if getattr(self, name) < low:
                raise ConfigError(f"{name} is {getattr(self, name)}: it must be at least {low}")


class Dispatcher:
    """See the module. Takes over `instances`.

    Args:
        hash_chain: names the blocks of a prompt.
        secret: of the deployment.
        classes: of objectives.
        drained: told of an instance that is draining and has nothing more of ours.

    Attributes:
        instances: who is there.
        retries: attempts that followed another one, by the instance that had that, and why it
            ended there.
        copies: of blocks, from instance to instance.
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
    ) -> None:
        self.instances = instances
        self.chooser = chooser
        self.retries: Counter[tuple[str, str]] = Counter()
        self._hash_chain = hash_chain
        self._secret = secret
        self._clock = clock
        self._classes = classes or SloClasses()
        self._config = config or DispatcherConfig()
        self._keys: dict[tuple[str, str], bytes] = {}
        self._open_ids: set[str] = set()
        self._num_waiting = 0
        self._attempts = Attempts(instances, chooser, clock, drained)
        self.copies = Copies(self._attempts, clock)

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
        if request_id in self._open_ids:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        self._open_ids.add(request_id)
        try:
            await self._wait_for_instance()
            live = self._begin(request)
            while True:
                attempt = await self._dispatch(live)
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
                    self._attempts.end(attempt)
                self._set_back(live, attempt, event)
        finally:
            self._open_ids.discard(request_id)

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

    def close(self) -> None:
        """Leave all instances. Requests that are open end with `EngineDiedError`."""
        self._config = DispatcherConfig(max_tries=1, instance_wait_s=0.0)
        self.copies.close()
        self.instances.close()

    # A request's way

    async def _wait_for_instance(self) -> None:
        if self.instances.usable:
            return
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

    def _begin(self, request: GenerateRequest) -> OpenRequest:
        params = request.params
        if params.seed is None:  # drawn here, so that any instance continues the same text
            params = msgspec.structs.replace(params, seed=secrets.randbits(63))
            request = msgspec.structs.replace(request, params=params)
        try:
            digests = self._hash_chain(
                self._key(request.cache_salt, self._fingerprint(request.adapter)),
                ROOT,
                request.prompt,
                self.info.page_tokens,
            )
        except ValueError as error:
            raise RequestError(f"the prompt has wrong token ids: {error}", "prompt") from None
        return OpenRequest(request, digests, [[] for _ in range(max(1, params.n))])

    def _fingerprint(self, adapter: str) -> str:
        there = self.info.adapters
        if adapter and adapter not in there:
            near = did_you_mean(adapter, there)
            raise AdapterNotFoundError(
                f"there is no adapter {adapter!r} here (loaded: {', '.join(there) or 'none'}): "
                + (near or "write it into engine.adapters of the deployment file"),
                "model",
            )
        return there.get(adapter, "")

    def _key(self, salt: str, adapter: str) -> bytes:
        """The key that names the blocks of a tenant with an adapter."""
        key = self._keys.get((salt, adapter))
        if key is None:
            reference = self.instances.reference
            assert reference is not None
            namespace = msgspec.structs.replace(
                reference.namespace, tenant_salt=salt, adapter=adapter
            )
            key = namespace.key(self._secret)
            if len(self._keys) >= _MAX_SALTS:
                self._keys.clear()
            self._keys[salt, adapter] = key
        return key

    async def _dispatch(self, live: OpenRequest) -> Attempt:
        """Choose where a request goes, and send it there."""
        view = self._view(live)
        while True:
            decision = self._choose(live, view)
            if decision is None:
                if live.refused_by and self.instances.usable:
                    raise live.setbacks[-1].error
                await self._wait_for_instance()
                continue
            if decision.copy is not None and not live.copied:
                # Once: what has come, or has not, is seen by the next choice.
                live.copied = True
                await self.copies.run(decision.copy, live, self.info.page_tokens)
                continue
            if decision.replicate is not None:
                self.copies.ahead(decision.replicate, live, self.info.page_tokens)
            if decision.preempt is not None:
                self._attempts.make_room(decision)
            return self._attempts.start(live, view, decision)

    def _choose(self, live: OpenRequest, view: RequestView) -> Decision | None:
        """None where nobody can take it."""
        excluded = [
            one.slot
            for one in (self.instances if live.refused_by else ())
            if one.slot is not None and one.info is not None and one.info.run_id in live.refused_by
        ]
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
        if setback.why == "refused":
            info = attempt.decode.info
            if info is not None:
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


def _setback(error: InlayError) -> Setback:
    """What an instance's refusal means: another one may have room, or be there to stay."""
    if isinstance(error, OverloadedError):
        return Setback(error, "refused")
    return Setback(error, "lost" if isinstance(error, EngineDiedError) else "failed")
