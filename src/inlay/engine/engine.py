"""One serving instance: requests in, tokens out, one step at a time.

    engine = Engine(EngineConfig(model=directory))
    completions = engine.generate("Define lantern.", SamplingParams(temperature=0))

`Engine` owns the model, its pages and all live requests (`requests.py`), and does their work in
steps (`steps.py`). It knows no process, socket or HTTP; `worker.py` gives it a process of its own.
One thread calls it.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inlay.cache import PagedKvCache, Sessions, Tiers
from inlay.core.block_hash import Namespace
from inlay.core.clock import Clock, SystemClock
from inlay.core.errors import EngineError, InlayError, WeightsError
from inlay.core.failures import restore
from inlay.core.instance_messages import KvLost, KvTarget, LoadReport, StepSample
from inlay.core.messages import (
    EngineInfo,
    EngineStats,
    GenerateRequest,
    InFlight,
    LoadProgress,
    RequestOutput,
    ResumeKv,
    Rollout,
    RolloutHandle,
    SamplingParams,
    ServedWeights,
    SessionBlocks,
    WeightsSwapped,
)
from inlay.engine.adapters import Adapters
from inlay.engine.completion import Completion
from inlay.engine.config import EngineConfig
from inlay.engine.exchange import Exchange
from inlay.engine.failures import load_failure
from inlay.engine.gauges import Gauges
from inlay.engine.load import step_sample
from inlay.engine.loading import LoadedModel, hash_chain, load
from inlay.engine.requests import Requests
from inlay.engine.rollouts import Rollouts
from inlay.engine.runner import Runner
from inlay.engine.scheduler import Chunk, Scheduler
from inlay.engine.scripts import generate, warm_up
from inlay.engine.steps import Steps
from inlay.engine.structure import GrammarCompiler
from inlay.engine.tiering import open_exchange, open_tiers
from inlay.engine.totals import Totals
from inlay.engine.weight_updates import WeightUpdates

if TYPE_CHECKING:
    from torch import Tensor

    from inlay.models.text import Text


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
        step_samples: where each step is noted; None: nowhere.
        served_weights: those that compute new requests, as `begin_swap` was told of them.

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
        self._text = loaded.text
        # A file may name ids that the model does not have; they would never come.
        end_ids = frozenset(
            token_id for token_id in loaded.text.eos_token_ids if 0 <= token_id < vocab_size
        )
        self.step_samples: deque[StepSample] | None = None
        namespace = Namespace(
            fingerprint=loaded.model.fingerprint,
            weight_format=loaded.held_as,
            kv_format=loaded.kv_format,
        )
        self.cache = PagedKvCache(
            num_pages=loaded.pool.num_pages,
            page_tokens=loaded.kv_format.page_tokens,
            namespace_key=lambda salt, adapter, weights: msgspec.structs.replace(
                self.namespace.of_weights(weights) if weights else self.namespace,
                tenant_salt=salt,
                adapter=adapter,
            ).key(config.cache.secret.encode()),
            prefix=config.cache.prefix,
            hash_chain=hash_chain,
        )
        self.served_weights = self._swapping = ServedWeights()
        self._sessions = Sessions(self.cache)
        self._scheduler = Scheduler(config.scheduler, self.cache, vocab_size)
        self._tiers: Tiers | None = None
        self._waits = False
        self._exchange: Exchange | None = None
        self._runner = Runner(loaded.model, loaded.pool, loaded.kv_format.page_tokens, loaded.ranks)
        self._grammars = GrammarCompiler(lambda: loaded.text.tokenizer_json, vocab_size, end_ids)
        self.info: EngineInfo = loaded.info(config, 0.0)
        self._requests = Requests(
            config.scheduler,
            info=self.info,
            num_experts=loaded.model.shape.experts,
            text=loaded.text,
            end_ids=end_ids,
            seed=secrets.randbits(64) if config.seed is None else config.seed,
            cache=self.cache,
            sessions=self._sessions,
            scheduler=self._scheduler,
            grammars=self._grammars,
            read_adapter=self._runner.load_adapter,
            forget_adapter=self._runner.forget_adapter,
            on_ready=on_ready,
        )
        self._steps = Steps(
            self._runner,
            self._scheduler,
            self._requests,
            clock=self._clock,
            page_tokens=self.cache.page_tokens,
            pool_bytes=loaded.pool.nbytes,
            failure=lambda: self.failure,
        )
        self._gauges = Gauges(
            cache=self.cache,
            scheduler=self._scheduler,
            requests=self._requests,
            runner=self._runner,
            steps=self._steps,
            has_store=config.cache.store is not None,
        )
        self._updates = WeightUpdates(
            loaded,
            namespace,
            cache=self.cache,
            runner=self._runner,
            requests=self._requests,
            scheduler=self._scheduler,
            on_ready=on_ready,
        )
        self._rollouts = Rollouts(self._requests, self._scheduler, self.cache, self._updates)
        self._ranks = loaded.ranks
        if self._ranks is not None:
            self._ranks.on_failure = on_ready
        self._loading = loaded.model.loading
        self._loading.on_change = on_ready
        try:
            for name, path in config.adapter_paths.items():
                self.adapters.load(name, path)
        except BaseException:
            self.close()  # other ranks would stay
            raise
        warm_up(self)
        if loaded.store is not None:
            self._tiers = open_tiers(self.cache, config.cache.write, loaded, self._clock, on_ready)
            self._scheduler.loader = self._tiers.loader
            self._sessions.tiers = self._gauges.tiers = self._rollouts.tiers = self._tiers
        if config.exchange is not None:
            self._exchange = open_exchange(
                config.exchange,
                config.cache.secret,
                self.cache,
                self._scheduler,
                loaded,
                self._clock,
                on_ready,
            )
            self._requests.exchange = self._exchange
        self.info = msgspec.structs.replace(
            loaded.info(config, time.monotonic() - started), adapters=self.adapters.fingerprints
        )

    @property
    def adapters(self) -> Adapters:
        """Those that requests may name; more can be loaded, and others unloaded."""
        return self._requests.adapters

    @property
    def namespace(self) -> Namespace:
        """Of blocks that are named from now on, without a tenant."""
        return self._updates.namespace

    @property
    def text(self) -> "Text":
        """Tokenizer and chat template."""
        return self._text

    @property
    def has_work(self) -> bool:
        """Whether a step would do something now.

        Requests whose grammar compiles do not count, nor do those that wait for a tier or for pages
        that another instance fills or reads.
        """
        return (
            (self._scheduler.has_work and not self._waits)
            or self._requests.outputs.pending
            or self._requests.compiled
            or self._updates.due
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
        sleeps = [
            self._tiers.sleep_s if self._tiers is not None and self._waits else None,
            None if self._exchange is None else self._exchange.sleep_s,
        ]
        return min((limit for limit in sleeps if limit is not None), default=None)

    @property
    def num_live(self) -> int:
        """Requests that have not had their last output."""
        return len(self._requests.live)

    def add(self, message: GenerateRequest) -> None:
        """Accept a request; its outputs come from `step`.

        Raises:
            OverloadedError: the queue is full.
            ContextLengthError: prompt and output do not fit into the context.
            RequestError: a value is out of range, or the id is in use.
            WeightsConflictError: it is for other weights than those that compute new requests.
            ModelFileError: weights that were still to come are damaged.
        """
        if self.failure is not None:
            raise self.failure
        if message.weights not in ("", self.namespace.weights):
            raise self._updates.refusal()
        self._requests.add(message)
        self._waits = False

    def cancel(self, request_id: str) -> None:
        """End a request and free its pages now. Unknown ids are ignored.

        Choices that were not finished end with the reason `cancel`, in the next step's output.
        """
        request = self._requests.live.get(request_id)
        if request is None:
            return
        self._waits = False
        self._requests.cancel(request)

    def kv_target(self, target: KvTarget) -> None:
        """The instance that decodes a prompt computed here has said where its KV goes."""
        request = self._requests.live.get(target.request_id)
        if request is None or self._exchange is None:
            return
        try:
            self._exchange.aim(target)
        except ValueError as error:
            self._requests.fail(request, EngineError(f"the KV cannot be sent: {error}"))

    def kv_lost(self, request_id: str, reason: str) -> None:
        """The KV of a prompt will not come from another instance; it is computed here."""
        if self._exchange is not None:
            self._exchange.lost(request_id, reason)
            self._waits = False

    def take_kv_messages(self) -> list[KvTarget | KvLost]:
        """Where prompts that others compute for this instance are to go, and which it computes
        itself because they did not come; each once.
        """
        return [] if self._exchange is None else self._exchange.take_messages()

    def step(self) -> list[RequestOutput]:
        """Do one step of work and return what it added to each request.

        A failure inside ends the request that it belongs to with an `EngineError`; the engine
        goes on with the others.
        """
        started = time.perf_counter()
        if self.failure is not None:
            self._requests.fail_all(self.failure)
        self._updates.poll()
        self._requests.start_compiled()
        if self._exchange is not None:
            self._requests.poll_exchange(self._exchange)
        if self._tiers is not None:
            self._tiers.poll()
            self._sessions.poll()
        chunks = self._steps.schedule()
        if self._tiers is not None:
            self._tiers.start()
        loading = self._tiers is not None and self._tiers.busy
        # Without tiers and other instances something can always be computed.
        self._waits = not chunks and (loading or self._exchange is not None)
        if chunks:
            self._steps.run(chunks)
            took_s = time.perf_counter() - started
            self._steps.totals.step_busy_s += took_s
            if self.step_samples is not None:
                self.step_samples.append(step_sample(chunks, took_s))
            if self._tiers is not None:
                self._tiers.loader.costs.observe_prefill(_prefill_tokens(chunks), took_s)
        self._updates.let_go()
        if self._exchange is not None:
            self._exchange.end_step(still=not chunks and not loading)
        return self._requests.outputs.take(
            self._clock.now(), self._requests.lost, self._updates.version_of
        )

    def generate(
        self,
        prompts: "str | Sequence[int] | Sequence[str | Sequence[int]]",
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        trace: bool = False,
        adapter: str = "",
    ) -> list[Completion]:
        """Answer prompts and return when all are done.

        Args:
            prompts: a text or token ids, or a list of these.
            params: for all prompts, or one per prompt.
            trace: also report what happened inside.
            adapter: name of one of `adapters`; empty: the model's own weights.

        Raises:
            RequestError: a prompt or its parameters are refused; nothing was computed for it.
        """
        return generate(self, prompts, params, trace=trace, adapter=adapter)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a compiling grammar is done or a tier answers, at most `timeout_s`."""
        if self._waits and self._tiers is not None:
            sleep_s = self._tiers.sleep_s
            self._tiers.wait(timeout_s if sleep_s is None else min(timeout_s, sleep_s))
            return
        self._requests.wait_compiled(timeout_s)

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        return msgspec.structs.replace(self._gauges.stats(), weight_version=self._updates.version)

    def load_report(self, run_id: str, samples: tuple[StepSample, ...]) -> LoadReport:
        """How loaded it is now. O(live choices); see `work_ahead`."""
        return self._gauges.load_report(run_id, samples)

    def reset_prefix_cache(self) -> int:
        """Forget all cached blocks that no request uses, and return how many."""
        return self.cache.reset()

    def pause_session(self, session: str) -> SessionBlocks:
        """Blocks of a session's last turn may make room; tiers get a copy of what they have not."""
        self._waits = False
        self._sessions.pause(session)
        return self._session_blocks(session)

    def resume_session(self, session: str) -> SessionBlocks:
        """Blocks of a session's last turn come back from the tiers."""
        self._waits = False
        self._sessions.resume(session)
        return self._session_blocks(session)

    def swap_weights(
        self,
        weights: "Path | Mapping[str, Tensor]",
        version: str,
        in_flight: InFlight = "finish",
    ) -> None:
        """Replace the weights, and return when new requests have the new ones.

        Args:
            weights: a directory with config.json, as that of the model that is served, and its
                weights; or all of its tensors by name, which are written to a temporary file.
            version: their name, by which their blocks are told from those of others.
            in_flight: what becomes of requests that have begun: `finish`: the old weights stay in
                memory until they have ended; `recompute`: their KV is computed anew by the new
                weights, and they go on; `continue`: they go on by the new weights with the KV that
                they have. Those that have not begun are computed by the new weights.

        Raises:
            WeightsMismatchError: they are of another model, or another dtype.
            WeightsError: this engine cannot replace its weights.
            ModelError: there are none, they are damaged, or do not fit beside the old ones.

        Cost: both weights are in memory for a while. `begin_swap` does the same beside steps.
        """
        self._updates.begin(weights, version, in_flight)
        self._updates.wait()
        self._updates.poll()
        for done in self._updates.take_done():
            if done.error is not None:
                raise restore(done.error_code or WeightsError.code, done.error)

    def find(self, request_ids: Iterable[str]) -> dict[str, str]:
        """Live requests, as they are named here, and which of these names that their senders or
        clients have is theirs.

        What is behind a number and a colon is the name that the sender of a request has for it; the
        same once more, and it is the client's.
        """
        wanted = set(request_ids)
        found = {}
        for request_id in self._requests.live:
            sent_as = request_id.partition(":")[2]
            for name in (sent_as, sent_as.partition(":")[2]):
                if name in wanted:
                    found[request_id] = name
        return found

    def begin_swap(
        self,
        directory: Path,
        version: str,
        in_flight: InFlight = "finish",
        *,
        told: ServedWeights | None = None,
    ) -> None:
        """As `swap_weights`, while steps go on; `take_swapped` says what became of it.

        Raises as `swap_weights` what is known before anything is loaded.

        Args:
            told: what is said of them once they serve; None: version and directory.
        """
        self._updates.begin(directory, version, in_flight)
        self._swapping = told or ServedWeights(version, str(directory))

    def take_swapped(self) -> list[WeightsSwapped]:
        """What became of swaps that were begun, each once."""
        done = self._updates.take_done()
        if any(one.error is None for one in done):
            self.served_weights = self._swapping
        return done

    def pause_rollouts(self, request_ids: Sequence[str] | None = None) -> list[Rollout]:
        """Stop requests, or all, until they are resumed; says how far they are.

        Raises:
            RequestError: there is no such request.
        """
        return self._rollouts.pause(request_ids)

    def resume_rollouts(
        self, handles: Sequence[RolloutHandle] | None = None, kv: ResumeKv = "keep"
    ) -> list[str]:
        """Let paused requests, or all, go on; see `Rollouts.resume`.

        Raises:
            RequestError: there is no such request.
            NotPausedError: some are not paused, or by other weights; none goes on.
        """
        self._waits = False
        return self._rollouts.resume(handles, kv)

    def refused_rollouts(self, handles: Sequence[RolloutHandle]) -> list[str]:
        """Why requests would not go on, in words; see `Rollouts.refused`.

        Raises:
            RequestError: there is no such request.
        """
        return self._rollouts.refused(handles)

    def _session_blocks(self, session: str) -> SessionBlocks:
        sessions = self._sessions
        return SessionBlocks(session, sessions.num_blocks(session), sessions.on_device(session))

    def forget_totals(self) -> None:
        """Start the totals of `stats` from zero."""
        self._steps.totals = Totals()

    def audit(self) -> None:
        """Check that every page is accounted for. O(pages); for tests."""
        choices = [choice for request in self._requests.live.values() for choice in request.choices]
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
        self.adapters.close()
        self._grammars.close()
        if self._ranks is not None:
            self._ranks.close()
        if self._exchange is not None:
            self._exchange.close()
        if self._tiers is not None:
            self._tiers.close()


def _prefill_tokens(chunks: list[Chunk]) -> int:
    return sum(chunk.stop - chunk.start for chunk in chunks if chunk.stop - chunk.start > 1)
