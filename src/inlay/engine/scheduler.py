"""Decides who computes what in the next step. No torch, no clock, no I/O.

One token budget per step is shared by decodes, which come first, and by chunks of prompts.
Requests run in the order of priority, of rounds (`engine.rounds`) and of arrival. When
pages run out, the last one in that order is preempted: it gives its pages back and is computed
again later, from its prompt and the output so far; its published blocks are usually still in the
prefix cache.

A choice may come with pages that another instance has filled; it keeps them while it waits, unless
one before it needs them.

Where there are tiers behind the device, blocks are loaded into a choice's pages while it waits
and while it is computed; it steps over those that have come, and now and then waits for one.

Progress: the first running choice can always get pages, because every other one can be
preempted for it and no request is accepted that the whole pool cannot hold.
"""

import heapq
from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inlay.cache import BlockNames, KvCache, Loader, PageHold
from inlay.core.errors import OutOfPagesError
from inlay.engine.config import SchedulerConfig
from inlay.engine.live import Choice
from inlay.engine.rounds import Rounds

SortKey = tuple[int, int, float, int, int]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens start..stop of a choice, to be computed in one step.

    Attributes:
        samples: whether these are the last known tokens, so that a new one follows.
    """

    choice: Choice
    start: int
    stop: int
    samples: bool


class Scheduler:
    """The waiting queue, the running choices and their pages.

    Attributes:
        running: in scheduling order.
        preemptions: total so far.
        loader: of the tiers behind the device, if there are any; set while no request is there.
    """

    def __init__(self, config: SchedulerConfig, cache: KvCache, vocab_size: int = 0) -> None:
        self._config = config
        self._cache = cache
        self.loader: Loader | None = None
        # Prompt log probabilities need a row of logits per token: at most 64 MiB of them in a step.
        self._logit_rows = max(1, 2**24 // max(vocab_size, 1))
        self._logit_rows_left = 0
        self._waiting: list[tuple[SortKey, Choice]] = []
        self._num_waiting = 0
        self._rounds = Rounds()
        self.running: list[Choice] = []
        self._slots_used = 0
        self.preemptions = 0

    @property
    def num_waiting(self) -> int:
        """Choices in the queue."""
        return self._num_waiting

    @property
    def has_work(self) -> bool:
        """Whether a step would compute something."""
        return bool(self.running or self._num_waiting)

    def add(self, choice: Choice) -> None:
        """Put a choice into the queue; it may bring pages, with `computed` tokens in them."""
        choice.state = "waiting"
        request = choice.request
        if request.round is None and request.message.produced:  # it was its turn elsewhere
            request.round = self._rounds.now
        elif request.round is None:
            request.round = self._rounds.take(request.tenant, choice.num_tokens - choice.computed)
        self._num_waiting += 1
        heapq.heappush(self._waiting, (choice.sort_key, choice))
        if choice.hold is None:
            self._begin_prefetch(choice)

    def remove(self, choice: Choice) -> None:
        """Take a choice out, wherever it is, and give its pages back."""
        request = choice.request
        if choice.state == "running":
            self._stop(choice)
            self._rounds.charge(request.tenant, len(choice.output))
        elif choice.state == "waiting":
            if request.scheduled_s is None:
                self._rounds.charge(request.tenant, -len(request.prompt))
            self._num_waiting -= 1
            self._end_prefetch(choice)
            self._take_pages(choice)
        choice.state = "finished"
        if len(self._waiting) > 2 * self._num_waiting + 64:
            # Entries of removed choices leave the heap when they come first; not before is
            # too late if the first one waits for long.
            self._waiting = [entry for entry in self._waiting if entry[1].state == "waiting"]
            heapq.heapify(self._waiting)

    def rename(self, choice: Choice, names: Callable[[], BlockNames]) -> None:
        """Compute a choice that waits or runs again, under other names of its blocks."""
        if choice.state == "waiting":
            self._end_prefetch(choice)
            self._take_pages(choice)
        running = choice.state == "running"
        if running:
            self._stop(choice)
            choice.request.preemptions += 1
        for one in (choice, *choice.fork):
            one.names = names()
        if running:
            self.add(choice)
        elif choice.state == "waiting":
            self._begin_prefetch(choice)

    def pause(self, choice: Choice) -> None:
        """Take a choice that waits or runs out until `add`; its published blocks stay."""
        if choice.state == "running":
            self._stop(choice)
            choice.request.preemptions += 1
        else:
            self._num_waiting -= 1
            self._end_prefetch(choice)
            self._take_pages(choice)
            self._waiting = [entry for entry in self._waiting if entry[1] is not choice]
            heapq.heapify(self._waiting)
        choice.state = "paused"

    def fork(self, choice: Choice) -> list[Choice]:
        """Start the other choices of a request whose prompt is computed.

        They share its full pages. The tokens of the last, partly filled page are computed
        again by each of them, together with its first own token, in its first step. That is
        less than a page of work per choice and needs no way to copy device memory: a fork is
        handled exactly as the return of a preempted choice.
        """
        forked, choice.fork = choice.fork, []
        assert choice.hold is not None
        for other in forked:
            other.hold = self._cache.fork(choice.hold, choice.computed)
            other.computed = len(other.hold.pages) * self._cache.page_tokens
            other.traced = choice.traced
            other.names.digests = list(choice.names.digests)
            other.state = "running"
            insort(self.running, other, key=_order)
        return forked

    def computed(self, chunk: Chunk) -> None:
        """Record that a chunk's KV is in its pages, and let others use full blocks."""
        choice = chunk.choice
        assert choice.hold is not None
        choice.computed = chunk.stop
        if not self._cache.reuses_prefixes or choice.request.mixed:
            return
        if chunk.stop // self._cache.page_tokens > choice.hold.num_named:
            choice.name_blocks(chunk.stop, self._cache.page_tokens)
            self._cache.publish(choice.hold, choice.names, chunk.stop)

    def schedule(self) -> list[Chunk]:
        """Choose the chunks of the next step and get their pages.

        Returns:
            Chunks in running order, decodes and prefills mixed; empty if nothing can run.
        """
        chunks: dict[Choice, Chunk] = {}
        budget = self._config.max_batch_tokens
        self._logit_rows_left = self._logit_rows
        decodes = [c for c in self.running if c.num_tokens - c.computed == 1 and c.prefetch is None]
        budget -= self._schedule_running(decodes, chunks, budget)
        if len(chunks) < len(self.running):
            prefills = [c for c in self.running if c not in chunks]
            budget -= self._schedule_running(prefills, chunks, budget)
        if self._num_waiting:
            self._admit(chunks, budget)
        return list(chunks.values())

    def _schedule_running(
        self, choices: list[Choice], chunks: dict[Choice, Chunk], budget: int
    ) -> int:
        """Schedule running choices in order and return the tokens they take."""
        taken = 0
        for choice in choices:
            if taken >= budget:
                break
            if choice.hold is None:  # preempted for an earlier one
                continue
            chunk = self._next_chunk(choice, budget - taken)
            while chunk is not None and choice.hold is not None:
                try:
                    self._cache.reserve(choice.hold, chunk.stop)
                except OutOfPagesError:
                    if self._shed(choice):
                        continue
                    victim = self.running[-1]
                    dropped = chunks.pop(victim, None)
                    if dropped is not None:
                        taken -= dropped.stop - dropped.start
                    self._preempt(victim)
                else:
                    chunks[choice] = chunk
                    taken += chunk.stop - chunk.start
                    break
        return taken

    def _next_chunk(self, choice: Choice, budget: int) -> Chunk | None:
        """The next tokens of a choice; takes its rows of logits from what the step has left.

        None if it waits for a load.
        """
        limit = min(budget, self._config.prefill_chunk)
        rows = choice.request.prompt_logprobs is not None
        if rows:
            limit = min(limit, max(1, self._logit_rows_left))
        if choice.prefetch is not None:
            limit = self._load(choice, limit)
            if not limit:
                return None
        end = choice.num_tokens
        stop = min(end, choice.computed + limit)
        if rows:
            self._logit_rows_left -= stop - choice.computed
        return Chunk(choice, choice.computed, stop, stop == end)

    def _load(self, choice: Choice, limit: int) -> int:
        """Step over what has been loaded, and return how many tokens to compute now."""
        prefetch, loader = choice.prefetch, self.loader
        assert prefetch is not None and loader is not None
        computed = loader.advance(prefetch, choice.computed)
        choice.request.spared(computed - choice.computed)
        choice.computed = computed
        if prefetch.done(computed // self._cache.page_tokens):
            self._end_prefetch(choice)
            return limit
        return loader.limit(prefetch, computed, computed + limit) - computed

    def _begin_prefetch(self, choice: Choice) -> None:
        if self.loader is not None and (reusable := self._reusable(choice)):
            choice.prefetch = self.loader.begin(choice.names, reusable, choice.sort_key)

    def _end_prefetch(self, choice: Choice) -> None:
        prefetch, choice.prefetch = choice.prefetch, None
        if prefetch is not None:
            assert self.loader is not None
            choice.request.loaded(prefetch.taken)
            self.loader.end(prefetch)

    def _admit(self, chunks: dict[Choice, Chunk], budget: int) -> None:
        for choice in self._heads():
            if budget <= 0 or not self._make_slots(choice, chunks):
                return
            hold = self._find_pages(choice, chunks)
            if hold is None:
                return
            self._start(choice, hold)
            chunk = self._next_chunk(choice, budget)
            if chunk is not None:
                chunks[choice] = chunk
                budget -= chunk.stop - chunk.start

    def _heads(self) -> Iterator[Choice]:
        """First waiting choices, one after the other; stop iterating when one must wait."""
        while self._waiting:
            choice = self._waiting[0][1]
            if choice.state == "waiting":
                yield choice
            else:
                heapq.heappop(self._waiting)

    def _make_slots(self, choice: Choice, chunks: dict[Choice, Chunk]) -> bool:
        while self._slots_used + choice.slots > self._config.max_running:
            if not self._preempt_for(choice, chunks):
                return False
        return True

    def _find_pages(self, choice: Choice, chunks: dict[Choice, Chunk]) -> PageHold | None:
        """Pages for all known tokens of a waiting choice, or None if it must wait."""
        num_tokens, page_tokens = choice.num_tokens, self._cache.page_tokens
        reusable = self._reusable(choice)
        while True:
            hold = choice.hold if choice.prefetch is None else choice.prefetch.hold
            match = self._cache.match_prefix(choice.names, reusable)
            there = match.num_tokens if hold is None else len(hold.pages) * page_tokens
            # Each running choice may soon need a page; without room for that, the newcomer
            # would be preempted at once.
            spare = len(self.running) * page_tokens
            counts = self._cache.counts()
            room = (counts.free + counts.idle) * page_tokens
            try:
                if not self.running or num_tokens - there + spare <= room:
                    if hold is None:
                        return self._cache.hold(match, num_tokens)
                    self._cache.reserve(hold, num_tokens)
                    return hold
            except OutOfPagesError:
                pass
            if self._shed(choice):
                continue
            if not self._preempt_for(choice, chunks):
                return None

    def _reusable(self, choice: Choice) -> int:
        """How many of a choice's known tokens may be taken from the cache; names their blocks."""
        wants_prompt = choice.request.prompt_logprobs
        if not self._cache.reuses_prefixes or (
            # Cached blocks have no logits.
            wants_prompt is not None and len(wants_prompt) < len(choice.request.prompt)
        ):
            return 0
        choice.name_blocks(choice.num_tokens, self._cache.page_tokens)
        return choice.num_tokens - 1

    def _start(self, choice: Choice, hold: PageHold) -> None:
        heapq.heappop(self._waiting)
        self._rounds.begun(choice.request.round or 0)
        self._num_waiting -= 1
        self._slots_used += choice.slots
        if choice.hold is None:
            choice.hold = hold
            choice.computed = hold.num_named * self._cache.page_tokens
            if choice.request.scheduled_s is None:
                choice.request.cached_tokens = choice.computed
        if choice.prefetch is not None:
            assert self.loader is not None
            self.loader.admit(choice.prefetch, hold)
        choice.state = "running"
        insort(self.running, choice, key=_order)

    def _shed(self, choice: Choice) -> bool:
        """Take pages of the last waiting choice behind this one; False if none has any."""
        if self.loader is not None and self.loader.shed(choice.sort_key):
            return True
        held = [
            other
            for key, other in self._waiting
            if key > choice.sort_key and other.state == "waiting" and other.hold is not None
        ]
        if held:
            self._take_pages(max(held, key=_order))
        return bool(held)

    def _take_pages(self, choice: Choice) -> None:
        """Let a waiting choice compute again what another instance has sent."""
        if choice.hold is not None:
            self._cache.release(choice.hold)
            choice.hold = None
            choice.computed = 0

    def _preempt_for(self, choice: Choice, chunks: dict[Choice, Chunk]) -> bool:
        """Preempt a running choice of strictly lower priority; False if there is none."""
        victim = self.running[-1] if self.running else None
        if victim is None or victim.sort_key[0] <= choice.sort_key[0]:
            return False
        chunks.pop(victim, None)
        self._preempt(victim)
        return True

    def _preempt(self, choice: Choice) -> None:
        self._stop(choice)
        self.preemptions += 1
        choice.request.preemptions += 1
        self.add(choice)

    def _stop(self, choice: Choice) -> None:
        """Take a running choice out of the running list and release its pages."""
        assert choice.hold is not None
        self._end_prefetch(choice)
        self.running.remove(choice)
        self._slots_used -= choice.slots
        self._cache.release(choice.hold)
        choice.hold = None
        choice.computed = 0


def _order(choice: Choice) -> SortKey:
    return choice.sort_key
