"""A scheduler on a real cache, where a test plays the computing of a step."""

from inlay.cache import PagedKvCache
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from inlay.engine.config import SchedulerConfig
from inlay.engine.live import Choice, LiveRequest
from inlay.engine.sampling import ChoiceSampler
from inlay.engine.scheduler import Scheduler
from inlay.engine.text_output import TextOutput

PAGE = 4


class _NoText:
    def push(self, token_id):
        return ""

    def flush(self):
        return ""


class Bench:
    """A scheduler, its cache, and steps that produce numbered tokens."""

    def __init__(self, *, pages=32, prefix=True, vocab_size=0, **config):
        config = {"max_batch_tokens": 32, "max_running": 8, "prefill_chunk": 16} | config
        self.cache = PagedKvCache(
            num_pages=pages,
            page_tokens=PAGE,
            namespace_key=lambda salt, adapter, weights: b"k",
            prefix=prefix,
        )
        self.config = SchedulerConfig(**config)
        self.scheduler = Scheduler(self.config, self.cache, vocab_size)
        self.requests = []
        self.finished = []

    def request(
        self, prompt, *, output=3, priority=0, n=1, prompt_logprobs=None, tenant="", produced=()
    ):
        order = len(self.requests)
        params = SamplingParams(n=n, prompt_logprobs=prompt_logprobs)
        request = LiveRequest(
            message=GenerateRequest(
                request_id=str(order),
                prompt=pack_token_ids(prompt),
                params=params,
                arrival_s=float(order),
                priority=priority,
                cache_salt=tenant,
                produced=produced,
            ),
            order=order,
            seed=0,
            max_tokens=output,
            end_ids=frozenset(),
            unfinished=n,
            prompt_logprobs=None if prompt_logprobs is None else [None],
        )
        for index in range(n):
            sampler = ChoiceSampler(
                params, seed=0, choice=index, prompt_ids=[], end_ids=frozenset()
            )
            text = TextOutput(_NoText(), ())
            request.choices.append(Choice(request, index, sampler, text, self.cache.names()))
        first, *first.fork = request.choices
        self.requests.append(request)
        self.scheduler.add(first)
        return first

    @property
    def choices(self):
        return [choice for request in self.requests for choice in request.choices]

    def audit(self):
        self.cache.audit([c.hold for c in self.choices if c.hold is not None])

    def step(self):
        """Run one step and return what it computed as {(request, choice): tokens}."""
        chunks = self.scheduler.schedule()
        assert sum(chunk.stop - chunk.start for chunk in chunks) <= self.config.max_batch_tokens
        assert len({id(chunk.choice) for chunk in chunks}) == len(chunks)
        for chunk in chunks:
            choice = chunk.choice
            assert choice.state == "running"
            assert chunk.start == choice.computed < chunk.stop <= len(choice.hold.pages) * PAGE
            for position in range(chunk.start, chunk.stop):
                page = choice.hold.pages[position // PAGE]
                assert self.cache._pool.references(page) == 1, "writes to a shared page"
        for chunk in chunks:
            self.scheduler.computed(chunk)
        for chunk in chunks:
            if chunk.samples:
                for choice in (chunk.choice, *self.scheduler.fork(chunk.choice)):
                    self._put_out(choice)
        self.audit()
        return {(c.choice.request.order, c.choice.index): c.stop - c.start for c in chunks}

    def _put_out(self, choice):
        # What a model would say depends on all tokens before, so preemption must keep them.
        choice.output.append((sum(choice.tokens(0, choice.num_tokens)) + choice.index) % 97)
        if len(choice.output) == choice.request.max_tokens:
            self.scheduler.remove(choice)
            self.finished.append((choice.request.order, choice.index))

    def run(self, limit=2000):
        for _ in range(limit):
            if not self.scheduler.has_work:
                return
            assert self.step(), "nothing ran although there is work"
        raise AssertionError("no progress")
