"""Requests of an engine from their arrival to their last output: how they start and how they end.

What happens between is the scheduler's and the steps' (`steps.py`).
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inlay.cache import KvCache, Sessions
from inlay.core.errors import EngineError, InlayError, OverloadedError, RequestError
from inlay.core.messages import EngineInfo, GenerateRequest
from inlay.engine.adapters import Adapters
from inlay.engine.config import SchedulerConfig
from inlay.engine.draws import derive_seed
from inlay.engine.exchange import Exchange, prefill_part
from inlay.engine.live import Choice, LiveRequest
from inlay.engine.outputs import StepOutputs, end_without_token, replay
from inlay.engine.sampling import ChoiceSampler
from inlay.engine.scheduler import Scheduler
from inlay.engine.structure import GrammarCompiler
from inlay.engine.text_output import TextOutput
from inlay.engine.validation import check_request

if TYPE_CHECKING:
    from inlay.models.adapter_weights import AdapterWeights
    from inlay.models.text import Text

log = logging.getLogger(__name__)


class Requests:
    """The requests that live, and what there is to say to them.

    Args:
        config: how many may wait and run.
        info: of the model that they are for.
        num_experts: of each of its layers; 0: it has none.
        text: its tokenizer.
        end_ids: tokens that end a choice unless its request says otherwise.
        seed: what the seeds of requests without one are derived from.
        cache: names the blocks of choices.
        sessions: hear of turns that have ended.
        scheduler: gets choices, and loses them.
        grammars: compiles what requests ask for.
        read_adapter: brings an adapter of a directory into memory.
        forget_adapter: lets go of one that was unloaded.
        on_ready: called from another thread when a grammar is compiled, or an adapter is there.

    Attributes:
        live: those that have not had their last output, by id.
        adapters: that requests may name.
        outputs: what there is to say since it was last taken.
        exchange: with other instances; None: there is none.
        weights: number of those that compute new requests.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        info: EngineInfo,
        num_experts: int,
        text: "Text",
        end_ids: frozenset[int],
        seed: int,
        cache: KvCache,
        sessions: Sessions,
        scheduler: Scheduler,
        grammars: GrammarCompiler,
        read_adapter: "Callable[[Path], AdapterWeights]",
        forget_adapter: "Callable[[AdapterWeights], None]",
        on_ready: Callable[[], None] | None,
    ) -> None:
        self.live: dict[str, LiveRequest] = {}
        self.adapters = Adapters(read_adapter, forget_adapter, self.live, on_ready)
        self.outputs = StepOutputs()
        self.exchange: Exchange | None = None
        self._config = config
        self._info = info
        self._num_experts = num_experts
        self._text = text
        self._end_ids = end_ids
        self._seed = seed
        self._cache = cache
        self._sessions = sessions
        self._scheduler = scheduler
        self._grammars = grammars
        self._on_ready = on_ready
        self.weights = 0
        self._compiling: dict[LiveRequest, Future[Any]] = {}
        self._num_requests = 0

    @property
    def num_waiting(self) -> int:
        """Those that wait for their turn or their grammar."""
        return self._scheduler.num_waiting + len(self._compiling)

    @property
    def compiled(self) -> bool:
        """Whether a grammar that a request waits for is done."""
        return any(future.done() for future in self._compiling.values())

    def add(self, message: GenerateRequest) -> None:
        """Accept a request; see `Engine.add`."""
        if message.phase != "both" and self.exchange is None:
            raise RequestError(
                f"this instance exchanges no KV with others, and phase is {message.phase!r}: set "
                "engine.exchange, or send the whole request to one instance"
            )
        if message.phase == "prefill":
            message = prefill_part(message)
        max_tokens = check_request(message, self._info, self._config.max_running)
        adapter = self.adapters.find(message.adapter)
        if message.request_id in self.live:
            raise RequestError(f"request id {message.request_id!r} is in use", "request_id")
        waiting = self.num_waiting
        if waiting >= self._config.max_waiting:
            raise OverloadedError(
                f"{waiting} requests are waiting, the limit is "
                f"{self._config.max_waiting}: try again later"
            )
        request = self._new_request(message, max_tokens)
        request.adapter = adapter
        structure = message.params.structure
        if structure is not None:
            future = self._grammars.submit(structure)
            if not future.done():
                self._compiling[request] = future
                self.live[message.request_id] = request
                future.add_done_callback(self._compiled)
                return
            self._start(request, future.result())
        else:
            self._start(request, None)
        self.live[message.request_id] = request

    def cancel(self, request: LiveRequest) -> None:
        """End a request; see `Engine.cancel`."""
        if not request.choices:
            self._stop_compiling(request)
            self._start_with(request, None)
        for choice in request.choices:
            if choice.finish_reason is None and choice.state != "finished":
                self.outputs.add(request, end_without_token(choice, "cancel"))
                self.finish(choice)

    def start_compiled(self) -> None:
        """Queue the requests whose grammars have been compiled."""
        if not self._compiling:
            return
        for request in [r for r, future in self._compiling.items() if future.done()]:
            future = self._compiling.pop(request)
            error = future.exception()
            if error is None:
                self._start_with(request, future.result())
            elif isinstance(error, InlayError):
                self.fail(request, error)
            else:
                log.error("a grammar's compilation failed", exc_info=error)
                self.fail(request, EngineError(f"the grammar cannot be compiled: {error}"))

    def wait_compiled(self, timeout_s: float) -> None:
        """Sleep until the first grammar in line is compiled, at most `timeout_s`."""
        for future in self._compiling.values():
            try:
                future.exception(timeout_s)
            except TimeoutError:
                pass
            return

    def poll_exchange(self, exchange: Exchange) -> None:
        """Prompts that were sent end here; those that have come, or will not, are queued."""
        for choice, error in exchange.poll():
            if error is not None:
                self.fail(choice.request, error)
            else:
                self.outputs.add(choice.request, end_without_token(choice, "length"))
                self.finish(choice)

    def finish(self, choice: Choice) -> None:
        """Take a choice with a finish reason out of the scheduler."""
        request = choice.request
        if choice.hold is not None:
            request.pages_used += len(choice.hold.pages)
        self._remove(choice)
        request.unfinished -= 1
        if request.message.session and choice.index == 0:
            self._sessions.ended(request.message.session, choice.names)
        if request.unfinished == 0:
            del self.live[request.request_id]

    def fail(self, request: LiveRequest, error: InlayError) -> None:
        """End a request with an error; what it had to say in this step is dropped."""
        for choice in request.choices:
            if choice.state != "finished":
                self._remove(choice)
        self._stop_compiling(request)
        if self.live.pop(request.request_id, None) is not None:
            self.outputs.fail(request.request_id, error, request)

    def fail_all(self, error: InlayError) -> None:
        """End all requests with an error."""
        for request in list(self.live.values()):
            self.fail(request, error)

    def lost(self, request: LiveRequest, error: Exception) -> None:
        """The output of a request could not be made; perhaps it was the last one."""
        log.error("an output failed; its request is dropped", exc_info=error)
        failure = EngineError(f"an output failed: {error!r}")
        if self.live.get(request.request_id) is request:
            self.fail(request, failure)
        else:
            self.outputs.fail(request.request_id, failure)

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
            weights=self.weights,
            mixed=bool(message.kv_weights),
        )
        if params.prompt_logprobs is not None and not message.produced:
            request.prompt_logprobs = [None]
        if message.trace and self._info.moe_layers:
            request.expert_counts_LE = np.zeros(
                (self._info.moe_layers, self._num_experts), np.int64
            )
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
            case "decode" if self.exchange is not None:
                self.exchange.receive(first)
                return
            case "prefill" if self.exchange is not None:
                self.exchange.send(first)
        self._scheduler.add(first)

    def _start_with(self, request: LiveRequest, grammar: Any) -> None:
        try:
            self._start(request, grammar)
        except Exception as error:
            log.exception("a request cannot start; it is dropped")
            self.fail(request, EngineError(f"the request cannot start: {error!r}"))

    def _new_choice(self, request: LiveRequest, index: int, grammar: Any) -> Choice:
        params = request.params
        mask = None if grammar is None else self._grammars.mask(grammar)
        stream = self._text.stream(
            skip_special_tokens=params.skip_special_tokens, prompt_ids=request.prompt
        )
        return Choice(
            request=request,
            index=index,
            sampler=ChoiceSampler(
                params,
                seed=request.seed,
                choice=index,
                prompt_ids=request.prompt,
                end_ids=request.end_ids,
                mask=mask,
            ),
            text=TextOutput(stream, params.stop),
            names=self._cache.names(*request.names_depend_on),
            grammar=mask,
        )

    def _remove(self, choice: Choice) -> None:
        """Take a choice out of wherever it is."""
        self._scheduler.remove(choice)
        if self.exchange is not None:
            self.exchange.drop(choice)

    def _stop_compiling(self, request: LiveRequest) -> None:
        """Forget a request's grammar; one that nobody else waits for need not be compiled."""
        future = self._compiling.pop(request, None)
        if future is not None and future not in self._compiling.values():
            future.cancel()

    def _compiled(self, future: "Future[Any]") -> None:
        if self._on_ready is not None and not future.cancelled():
            self._on_ready()
