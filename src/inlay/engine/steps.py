"""The steps of an engine: what is scheduled is computed, and its tokens go to their requests.

A failure ends the requests that it belongs to (`requests.py`); the others go on.
"""

import logging
from collections.abc import Callable

from inlay.core.clock import Clock
from inlay.core.errors import EngineError, InlayError
from inlay.core.messages import TokenLogprob
from inlay.engine.failures import step_failure
from inlay.engine.live import Choice
from inlay.engine.outputs import advance, end_without_token, impossible
from inlay.engine.requests import Requests
from inlay.engine.runner import Runner, StepResult
from inlay.engine.scheduler import Chunk, Scheduler
from inlay.engine.totals import Totals

log = logging.getLogger(__name__)


class Steps:
    """See the module.

    Args:
        runner: computes.
        scheduler: says what.
        requests: whose tokens they are.
        clock: monotonic seconds for the times of requests.
        page_tokens: of the cache.
        pool_bytes: of all its pages.
        failure: why the engine is of no use any more, if so.

    Attributes:
        totals: what they have done so far.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        requests: Requests,
        *,
        clock: Clock,
        page_tokens: int,
        pool_bytes: int,
        failure: Callable[[], InlayError | None],
    ) -> None:
        self.totals = Totals()
        self._runner = runner
        self._scheduler = scheduler
        self._requests = requests
        self._clock = clock
        self._page_tokens = page_tokens
        self._pool_bytes = pool_bytes
        self._failure = failure

    def schedule(self) -> list[Chunk]:
        """What the next step computes; empty if nothing can run now."""
        if not self._scheduler.has_work:
            return []
        try:
            chunks = self._scheduler.schedule()
        except Exception as error:
            # Nothing says whose fault it is, and to go on would only repeat it.
            log.exception("scheduling failed; all requests are dropped")
            self._requests.fail_all(EngineError(f"scheduling failed: {error!r}"))
            return []
        self.totals.scheduled(chunks, self._clock.now(), self._page_tokens)
        return chunks

    def run(self, chunks: list[Chunk]) -> None:
        """Compute chunks and give their tokens to their requests."""
        self.totals.steps += 1
        # Rows of one adapter lie together, so that its matrices are read once.
        chunks = sorted(chunks, key=lambda chunk: chunk.choice.request.message.adapter)
        for together in self._by_weights(chunks):
            for done, result in self._results(together):
                self._advance(done, result)

    def _by_weights(self, chunks: list[Chunk]) -> list[list[Chunk]]:
        """While requests end under weights that were replaced, each weights' chunks alone."""
        if self._runner.num_models == 1:
            return [chunks]
        groups: dict[int, list[Chunk]] = {}
        for chunk in chunks:
            groups.setdefault(chunk.choice.request.weights, []).append(chunk)
        return list(groups.values())

    def _results(self, chunks: list[Chunk]) -> list[tuple[list[Chunk], StepResult]]:
        """Compute and sample. After a failure each chunk runs alone, which shows whose fault it is.

        To compute a chunk again changes nothing: it writes the same pages.
        """
        try:
            return [(chunks, self._compute(chunks))]
        except Exception as error:
            useless = self._failure()
            if useless is not None:
                self._requests.fail_all(useless)
                return []
            if self._runner.relieve(error):
                return self._results(chunks)
            if len(chunks) == 1:
                log.exception("a step failed; the request in it is dropped")
                (chunk,) = chunks
                tokens = chunk.stop - chunk.start
                failure = step_failure(error, tokens=tokens, pool_bytes=self._pool_bytes)
                self._requests.fail(chunk.choice.request, failure)
                return []
            log.warning("a step of %d chunks failed, each runs alone: %r", len(chunks), error)
        done = []
        for chunk in chunks:
            if chunk.choice.state == "running":  # its request may have failed a moment ago
                done += self._results([chunk])
        return done

    def _compute(self, chunks: list[Chunk]) -> StepResult:
        exchange = self._requests.exchange
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
                assert self._requests.exchange is not None
                self._requests.exchange.computed(chunk.choice)
            elif chunk.samples and not chunk.choice.request.max_tokens:
                for choice in chunk.choice.request.choices:
                    self._requests.outputs.add(choice.request, end_without_token(choice, "length"))
                    self._requests.finish(choice)
        samples = result.samples
        self.totals.generated_tokens += len(samples.token_ids)
        for choice, token_id, possible, logprob in zip(
            result.choices, samples.token_ids, samples.possible, samples.logprobs, strict=True
        ):
            if choice.state != "running":  # its request failed a moment ago
                continue
            try:
                self._apply(choice, token_id, possible, logprob)
            except Exception as error:
                log.exception("an output failed; its request is dropped")
                self._requests.fail(choice.request, EngineError(f"an output failed: {error!r}"))

    def _apply(
        self, choice: Choice, token_id: int, possible: bool, logprob: TokenLogprob | None
    ) -> None:
        if possible:
            delta = advance(choice, token_id, logprob)
        else:
            error = impossible(choice)
            if error is not None:
                self._requests.fail(choice.request, error)
                return
            delta = end_without_token(choice, "stop")
        self._requests.outputs.add(choice.request, delta)
        if choice.finish_reason is not None:
            self._requests.finish(choice)
