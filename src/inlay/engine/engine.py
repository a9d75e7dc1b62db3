"""One serving instance: requests in, tokens out, one step at a time.

    engine = Engine(EngineConfig(model=directory))
    completions = engine.generate("Define lantern.", SamplingParams(temperature=0))

`Engine` owns the model, its pages and all live requests. It knows no process, socket or HTTP;
`worker.py` gives it a process of its own. One thread calls it.
"""

import dataclasses
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from inlay.cache import PagedKvCache, Sessions, TierCounts, Tiers
from inlay.core.block_hash import Namespace
from inlay.core.clock import Clock, SystemClock
from inlay.core.errors import EngineError, InlayError, OverloadedError, RequestError
from inlay.core.instance_messages import KvTarget, LoadReport, StepSample
from inlay.core.messages import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    LoadProgress,
    RequestOutput,
    SamplingParams,
    SessionBlocks,
    TokenLogprob,
)
from inlay.engine.completion import Completion
from inlay.engine.config import EngineConfig
from inlay.engine.draws import derive_seed
from inlay.engine.exchange import Exchange, prefill_part
from inlay.engine.failures import load_failure, step_failure
from inlay.engine.live import Choice, LiveRequest
from inlay.engine.load import step_sample, work_ahead
from inlay.engine.loading import LoadedModel, hash_chain, load
from inlay.engine.outputs import StepOutputs, advance, end_without_token, impossible, replay
from inlay.engine.runner import Runner, StepResult
from inlay.engine.sampling import ChoiceSampler
from inlay.engine.scheduler import Chunk, Scheduler
from inlay.engine.scripts import generate, warm_up
from inlay.engine.structure import GrammarCompiler
from inlay.engine.text_output import TextOutput
from inlay.engine.tiering import open_exchange, open_tiers
from inlay.engine.totals import Totals
from inlay.engine.validation import check_request

if TYPE_CHECKING:
    from inlay.models.text import Text

log = logging.getLogger(__name__)


class Engine:
    """Continuous batching over one model.

    Args:
        config: what to load and how much to run at once.
        loaded: a model that is already there, in place of `config.model`.
        clock: monotonic seconds for the times of requests.
        on_ready: called from another thread when a grammar is compiled, blocks have come from a
            tier, or weights into memory; wakes a caller that sleeps because `has_work` was False.

    Attributes:
        info: what is served, with what.
        namespace: of its blocks, without a tenant.
        step_samples: where each step is noted; None: nowhere.

    Raises:
        ModelError: the model cannot be loaded.
        ConfigError: the page pool does not fit the configuration.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        loaded: LoadedModel | None = None,
        clock: Clock | None = None,
        on_ready: Callable[[], None] | None = None,
    ) -> None:
        started = time.monotonic()
        if loaded is None:
            loaded = load(config)
        vocab_size = loaded.model.shape.vocab
        self.config = config
        self._clock = SystemClock() if clock is None else clock
        self._on_ready = on_ready
        self._text = loaded.text
        # A file may name ids that the model does not have; they would never come.
        self._end_ids = frozenset(
            token_id for token_id in loaded.text.eos_token_ids if 0 <= token_id < vocab_size
        )
        self._seed = secrets.randbits(64) if config.seed is None else config.seed
        self._num_requests = 0
        self._live: dict[str, LiveRequest] = {}
        self._compiling: dict[LiveRequest, Future[Any]] = {}
        self._outputs = StepOutputs()
        self.step_samples: deque[StepSample] | None = None
        self.namespace = Namespace(
            fingerprint=loaded.model.fingerprint,
            weight_format=loaded.held_as,
            kv_format=loaded.kv_format,
        )
        self.cache = PagedKvCache(
            num_pages=loaded.pool.num_pages,
            page_tokens=loaded.kv_format.page_tokens,
            namespace_key=lambda salt: msgspec.structs.replace(
                self.namespace, tenant_salt=salt
            ).key(config.cache.secret.encode()),
            prefix=config.cache.prefix,
            hash_chain=hash_chain,
        )
        self._sessions = Sessions(self.cache)
        self._scheduler = Scheduler(config.scheduler, self.cache, vocab_size)
        self._tiers: Tiers | None = None
        self._waits_for_tiers = False
        self._exchange: Exchange | None = None
        self._runner = Runner(loaded.model, loaded.pool, loaded.kv_format.page_tokens)
        self._grammars = GrammarCompiler(
            lambda: loaded.text.tokenizer_json, vocab_size, self._end_ids
        )
        self._experts = loaded.model.shape.experts
        self._ranks = loaded.ranks
        if self._ranks is not None:
            self._ranks.on_failure = on_ready
        self._loading = loaded.model.loading
        self._loading.on_change = on_ready
        self.forget_totals()
        self.info: EngineInfo = loaded.info(config, 0.0)
        warm_up(self)
        if loaded.store is not None:
            self._tiers = open_tiers(self.cache, config.cache.write, loaded, self._clock, on_ready)
            self._scheduler.loader = self._tiers.loader
            self._sessions.tiers = self._tiers
        if config.exchange is not None:
            self._exchange = open_exchange(
                config.exchange, config.cache.secret, self.cache, self._scheduler, loaded, on_ready
            )
        self.info = loaded.info(config, time.monotonic() - started)

    @property
    def text(self) -> "Text":
        """Tokenizer and chat template."""
        return self._text

    @property
    def has_work(self) -> bool:
        """Whether a step would do something now.

        Requests whose grammar compiles do not count, nor do those that wait for a tier.
        """
        return (
            (self._scheduler.has_work and not self._waits_for_tiers)
            or self._outputs.pending
            or any(future.done() for future in self._compiling.values())
            or (self._tiers is not None and self._tiers.due)
            or (self._exchange is not None and self._exchange.due)
        )

    @property
    def exchange_address(self) -> str:
        """Where other instances send KV; empty where there is no exchange."""
        return "" if self._exchange is None else self._exchange.address

    @property
    def load_progress(self) -> LoadProgress:
        """How much of the weights is in memory."""
        return self._loading.progress

    @property
    def failure(self) -> InlayError | None:
        """Why the engine is of no use any more: its weights did not come, or a rank is gone."""
        error = self._loading.failure
        if error is not None:
            return load_failure(error)
        return None if self._ranks is None else self._ranks.failure

    @property
    def sleep_s(self) -> float | None:
        """How long nothing is to be done if nobody calls; None: for ever."""
        if self._tiers is None or not self._waits_for_tiers:
            return None
        return self._tiers.sleep_s

    @property
    def num_live(self) -> int:
        """Requests that have not had their last output."""
        return len(self._live)

    def add(self, message: GenerateRequest) -> None:
        """Accept a request; its outputs come from `step`.

        Raises:
            OverloadedError: the queue is full.
            ContextLengthError: prompt and output do not fit into the context.
            RequestError: a value is out of range, or the id is in use.
            ModelFileError: weights that were still to come are damaged.
        """
        if self.failure is not None:
            raise self.failure
        if message.phase != "both" and self._exchange is None:
            raise RequestError(
                f"this instance exchanges no KV with others, and phase is {message.phase!r}: set "
                "engine.exchange, or send the whole request to one instance"
            )
        if message.phase == "prefill":
            message = prefill_part(message)
        max_tokens = check_request(message, self.info, self.config.scheduler.max_running)
        if message.request_id in self._live:
            raise RequestError(f"request id {message.request_id!r} is in use", "request_id")
        waiting = self._scheduler.num_waiting + len(self._compiling)
        if waiting >= self.config.scheduler.max_waiting:
            raise OverloadedError(
                f"{waiting} requests are waiting, the limit is "
                f"{self.config.scheduler.max_waiting}: try again later"
            )
        self._waits_for_tiers = False
        request = self._new_request(message, max_tokens)
        structure = message.params.structure
        if structure is not None:
            future = self._grammars.submit(structure)
            if not future.done():
                self._compiling[request] = future
                self._live[message.request_id] = request
                future.add_done_callback(self._compiled)
                return
            self._start(request, future.result())
        else:
            self._start(request, None)
        self._live[message.request_id] = request

    def cancel(self, request_id: str) -> None:
        """End a request and free its pages now. Unknown ids are ignored.

        Choices that were not finished end with the reason `cancel`, in the next step's output.
        """
        request = self._live.get(request_id)
        if request is None:
            return
        self._waits_for_tiers = False
        if not request.choices:
            self._stop_compiling(request)
            self._start_with(request, None)
        for choice in request.choices:
            if choice.finish_reason is None and choice.state != "finished":
                self._outputs.add(request, end_without_token(choice, "cancel"))
                self._finish(choice)

    def kv_target(self, target: KvTarget) -> None:
        """The instance that decodes a prompt computed here has said where its KV goes."""
        request = self._live.get(target.request_id)
        if request is None or self._exchange is None:
            return
        try:
            self._exchange.aim(target)
        except ValueError as error:
            self._fail(request, EngineError(f"the KV cannot be sent: {error}"))

    def kv_lost(self, request_id: str, reason: str) -> None:
        """The KV of a prompt will not come from another instance; it is computed here."""
        if self._exchange is not None:
            self._exchange.lost(request_id, reason)

    def take_targets(self) -> list[KvTarget]:
        """Where prompts that others compute for this instance are to go; each once."""
        return [] if self._exchange is None else self._exchange.take_targets()

    def step(self) -> list[RequestOutput]:
        """Do one step of work and return what it added to each request.

        A failure inside ends the request that it belongs to with an `EngineError`; the engine
        goes on with the others.
        """
        started = time.perf_counter()
        if self.failure is not None:
            self._fail_all(self.failure)
        self._start_compiled()
        if self._exchange is not None:
            self._exchanged(self._exchange)
        if self._tiers is not None:
            self._tiers.poll()
            self._sessions.poll()
        chunks = self._schedule()
        if self._tiers is not None:
            self._tiers.start()
            self._waits_for_tiers = not chunks and self._tiers.busy
        if chunks:
            self._totals.steps += 1
            for done, result in self._run(chunks):
                self._advance(done, result)
            took_s = time.perf_counter() - started
            self._totals.step_busy_s += took_s
            if self.step_samples is not None:
                self.step_samples.append(step_sample(chunks, took_s))
            if self._tiers is not None:
                self._tiers.loader.costs.observe_prefill(_prefill_tokens(chunks), took_s)
        return self._outputs.take(self._clock.now(), self._lost)

    def generate(
        self,
        prompts: "str | Sequence[int] | Sequence[str | Sequence[int]]",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        trace: bool = False,
    ) -> list[Completion]:
        """Answer prompts and return when all are done.

        Args:
            prompts: a text or token ids, or a list of these.
            params: for all prompts, or one per prompt.
            trace: also report what happened inside.

        Raises:
            RequestError: a prompt or its parameters are refused; nothing was computed for it.
        """
        return generate(self, prompts, params, trace=trace)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a compiling grammar is done or a tier answers, at most `timeout_s`."""
        if self._waits_for_tiers and self._tiers is not None:
            sleep_s = self._tiers.sleep_s
            self._tiers.wait(timeout_s if sleep_s is None else min(timeout_s, sleep_s))
            return
        for future in self._compiling.values():
            try:
                future.exception(timeout_s)
            except TimeoutError:
                pass
            return

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        counts = self.cache.counts()
        tiers = TierCounts() if self._tiers is None else self._tiers.counts
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting + len(self._compiling),
            pages_total=counts.total,
            pages_free=counts.free,
            pages_cached=counts.idle,
            preemptions=self._scheduler.preemptions,
            **dataclasses.asdict(self._totals),
            tier_loaded_bytes=tiers.loaded_bytes,
            tier_written_bytes=tiers.written_bytes,
            tier_cut_tokens=tiers.cut_tokens,
            tier_failures=tiers.failures,
            tier_lost_blocks=tiers.lost_blocks,
            **self._runner.expert_counts(),
            kv_routes=() if self._exchange is None else self._exchange.routes(),
        )

    def load_report(self, run_id: str, samples: tuple[StepSample, ...]) -> LoadReport:
        """How loaded it is now. O(live choices); see `work_ahead`."""
        counts = self.cache.counts()
        ahead = work_ahead(self._live.values(), self.cache)
        return LoadReport(
            run_id=run_id,
            waiting=self._scheduler.num_waiting + len(self._compiling),
            running=len(self._scheduler.running),
            receiving=ahead.receiving,
            prefill_tokens=ahead.prefill_tokens,
            context_tokens=ahead.context_tokens,
            pages_total=counts.total,
            pages_free=counts.free,
            pages_cached=counts.idle,
            samples=samples,
        )

    def reset_prefix_cache(self) -> int:
        """Forget all cached blocks that no request uses, and return how many."""
        return self.cache.reset()

    def pause_session(self, session: str) -> SessionBlocks:
        """Blocks of a session's last turn may make room; tiers get a copy of what they have not."""
        self._waits_for_tiers = False
        self._sessions.pause(session)
        return self._session_blocks(session)

    def resume_session(self, session: str) -> SessionBlocks:
        """Blocks of a session's last turn come back from the tiers."""
        self._waits_for_tiers = False
        self._sessions.resume(session)
        return self._session_blocks(session)

    def _session_blocks(self, session: str) -> SessionBlocks:
        sessions = self._sessions
        return SessionBlocks(session, sessions.num_blocks(session), sessions.on_device(session))

    def forget_totals(self) -> None:
        """Start the totals of `stats` from zero."""
        self._totals = Totals()

    def audit(self) -> None:
        """Check that every page is accounted for. O(pages); for tests."""
        choices = [choice for request in self._live.values() for choice in request.choices]
        holds = [choice.hold for choice in choices if choice.hold is not None]
        if self._tiers is not None:
            holds += self._tiers.holds()
        if self._exchange is not None:
            holds += self._exchange.holds()
        self.cache.audit(holds)

    def flush(self, timeout_s: float) -> bool:
        """Copy to the tiers what waits for it; False if there is more to copy after `timeout_s`."""
        return self._tiers is None or self._tiers.flush(timeout_s)

    def close(self) -> None:
        """End helper threads, those that load the model among them, and other ranks. Live requests
        get no more outputs.
        """
        self._loading.close()
        self._grammars.close()
        if self._ranks is not None:
            self._ranks.close()
        if self._exchange is not None:
            self._exchange.close()
        if self._tiers is not None:
            self._tiers.close()

    # Requests and choices

    def _new_request(self, message: GenerateRequest, max_tokens: int) -> LiveRequest:
        params = message.params
        self._num_requests += 1
        seed = params.seed
        end_ids = frozenset(params.stop_token_ids)
        request = LiveRequest(
            message=message,
            order=self._num_requests,
            seed=derive_seed(self._seed, self._num_requests) if seed is None else seed,
            max_tokens=max_tokens,
            end_ids=end_ids if params.ignore_eos else end_ids | self._end_ids,
            unfinished=params.n - message.produced.count(None),
        )
        if params.prompt_logprobs is not None and not message.produced:
            request.prompt_logprobs = [None]
        if message.trace and self.info.moe_layers:
            request.expert_counts_LE = np.zeros((self.info.moe_layers, self._experts), np.int64)
        return request

    def _start(self, request: LiveRequest, grammar: Any) -> None:
        """Make the choices of a request and queue them."""
        produced = request.message.produced
        for index in range(request.params.n):
            if produced and produced[index] is None:
                continue
            choice = self._new_choice(request, index, grammar)
            replay(choice, (produced[index] or ()) if produced else ())
            request.choices.append(choice)
        first, *others = request.choices
        if produced:
            # Each has tokens of its own behind the prompt; blocks of the prompt they share anyway.
            for other in others:
                self._scheduler.add(other)
        else:
            first.fork = others  # they follow when the prompt is computed
        match request.message.phase:
            case "decode" if self._exchange is not None:
                self._exchange.receive(first)
                return
            case "prefill" if self._exchange is not None:
                self._exchange.send(first)
        self._scheduler.add(first)

    def _new_choice(self, request: LiveRequest, index: int, grammar: Any) -> Choice:
        message, params = request.message, request.params
        mask = None if grammar is None else self._grammars.mask(grammar)
        stream = self._text.stream(
            skip_special_tokens=params.skip_special_tokens, prompt_ids=message.token_ids
        )
        return Choice(
            request=request,
            index=index,
            sampler=ChoiceSampler(
                params,
                seed=request.seed,
                choice=index,
                prompt_ids=message.token_ids,
                end_ids=request.end_ids,
                mask=mask,
            ),
            text=TextOutput(stream, params.stop),
            names=self.cache.names(message.cache_salt),
            grammar=mask,
        )

    def _finish(self, choice: Choice) -> None:
        """Take a choice with a finish reason out of the scheduler."""
        request = choice.request
        if choice.hold is not None:
            request.pages_used += len(choice.hold.pages)
        self._remove(choice)
        request.unfinished -= 1
        if request.message.session and choice.index == 0:
            self._sessions.ended(request.message.session, choice.names)
        if request.unfinished == 0:
            del self._live[request.request_id]

    def _remove(self, choice: Choice) -> None:
        """Take a choice out of wherever it is."""
        self._scheduler.remove(choice)
        if self._exchange is not None:
            self._exchange.drop(choice)

    def _fail(self, request: LiveRequest, error: InlayError) -> None:
        for choice in request.choices:
            if choice.state != "finished":
                self._remove(choice)
        self._stop_compiling(request)
        if self._live.pop(request.request_id, None) is not None:
            self._outputs.fail(request.request_id, error, request)

    def _fail_all(self, error: InlayError) -> None:
        for request in list(self._live.values()):
            self._fail(request, error)

    def _lost(self, request: LiveRequest, error: Exception) -> None:
        """The output of a request could not be made; perhaps it was the last one."""
        log.error("an output failed; its request is dropped", exc_info=error)
        failure = EngineError(f"an output failed: {error!r}")
        if self._live.get(request.request_id) is request:
            self._fail(request, failure)
        else:
            self._outputs.fail(request.request_id, failure)

    def _stop_compiling(self, request: LiveRequest) -> None:
        """Forget a request's grammar; one that nobody else waits for need not be compiled."""
        future = self._compiling.pop(request, None)
        if future is not None and future not in self._compiling.values():
            future.cancel()

    # Phases of a step

    def _exchanged(self, exchange: Exchange) -> None:
        """Prompts that were sent end here; those that have come, or will not, are queued."""
        for choice, error in exchange.poll():
            if error is not None:
                self._fail(choice.request, error)
            else:
                self._outputs.add(choice.request, end_without_token(choice, "length"))
                self._finish(choice)

    def _compiled(self, future: "Future[Any]") -> None:
        if self._on_ready is not None and not future.cancelled():
            self._on_ready()

    def _start_compiled(self) -> None:
        if not self._compiling:
            return
        for request in [r for r, future in self._compiling.items() if future.done()]:
            future = self._compiling.pop(request)
            error = future.exception()
            if error is None:
                self._start_with(request, future.result())
            elif isinstance(error, InlayError):
                self._fail(request, error)
            else:
                log.error("a grammar's compilation failed", exc_info=error)
                self._fail(request, EngineError(f"the grammar cannot be compiled: {error}"))

    def _start_with(self, request: LiveRequest, grammar: Any) -> None:
        try:
            self._start(request, grammar)
        except Exception as error:
            log.exception("a request cannot start; it is dropped")
            self._fail(request, EngineError(f"the request cannot start: {error!r}"))

    def _schedule(self) -> list[Chunk]:
        if not self._scheduler.has_work:
            return []
        try:
            chunks = self._scheduler.schedule()
        except Exception as error:
            # Nothing says whose fault it is, and to go on would only repeat it.
            log.exception("scheduling failed; all requests are dropped")
            self._fail_all(EngineError(f"scheduling failed: {error!r}"))
            return []
        self._totals.scheduled(chunks, self._clock.now(), self.cache.page_tokens)
        return chunks

    def _run(self, chunks: list[Chunk]) -> list[tuple[list[Chunk], StepResult]]:
        """Compute and sample. After a failure each chunk runs alone, which shows whose fault it is.

        To compute a chunk again changes nothing: it writes the same pages.
        """
        try:
            return [(chunks, self._compute(chunks))]
        except Exception as error:
            if self.failure is not None:
                self._fail_all(self.failure)
                return []
            if self._runner.relieve(error):
                return self._run(chunks)
            if len(chunks) == 1:
                log.exception("a step failed; the request in it is dropped")
                (chunk,) = chunks
                pool_bytes = self.info.num_pages * self.info.page_bytes
                tokens = chunk.stop - chunk.start
                failure = step_failure(error, tokens=tokens, pool_bytes=pool_bytes)
                self._fail(chunk.choice.request, failure)
                return []
            log.warning("a step of %d chunks failed, each runs alone: %r", len(chunks), error)
        done = []
        for chunk in chunks:
            if chunk.choice.state == "running":  # its request may have failed a moment ago
                done += self._run([chunk])
        return done

    def _compute(self, chunks: list[Chunk]) -> StepResult:
        exchange = self._exchange
        if exchange is None or not exchange.before_step(chunks):
            batch, logits_RV = self._runner.forward(chunks)
        else:
            try:
                batch, logits_RV = self._runner.forward(chunks, exchange.layer_done)
            finally:
                exchange.after_step()
        for chunk in chunks:
            self._scheduler.computed(chunk)
        return self._runner.finish(chunks, batch, logits_RV)

    def _advance(self, chunks: list[Chunk], result: StepResult) -> None:
        for chunk in chunks:
            if chunk.samples and chunk.choice.fork:
                self._scheduler.fork(chunk.choice)
            if chunk.samples and chunk.choice.outgoing is not None:
                assert self._exchange is not None
                self._exchange.computed(chunk.choice)
            elif chunk.samples and not chunk.choice.request.max_tokens:
                for choice in chunk.choice.request.choices:
                    self._outputs.add(choice.request, end_without_token(choice, "length"))
                    self._finish(choice)
        samples = result.samples
        self._totals.generated_tokens += len(samples.token_ids)
        for choice, token_id, possible, logprob in zip(
            result.choices, samples.token_ids, samples.possible, samples.logprobs, strict=True
        ):
            if choice.state != "running":  # its request failed a moment ago
                continue
            try:
                self._apply(choice, token_id, possible, logprob)
            except Exception as error:
                log.exception("an output failed; its request is dropped")
                self._fail(choice.request, EngineError(f"an output failed: {error!r}"))

    def _apply(
        self, choice: Choice, token_id: int, possible: bool, logprob: TokenLogprob | None
    ) -> None:
        if possible:
            delta = advance(choice, token_id, logprob)
        else:
            error = impossible(choice)
            if error is not None:
                self._fail(choice.request, error)
                return
            delta = end_without_token(choice, "stop")
        self._outputs.add(choice.request, delta)
        if choice.finish_reason is not None:
            self._finish(choice)


def _prefill_tokens(chunks: list[Chunk]) -> int:
    return sum(chunk.stop - chunk.start for chunk in chunks if chunk.stop - chunk.start > 1)
