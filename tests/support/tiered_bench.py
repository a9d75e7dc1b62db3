"""A scheduler with tiers behind its cache, where a test ends the jobs: contents are followed."""

from inlay.cache import Tiers, WriteBack
from inlay.core.clock import FakeClock
from tests.support.played_blocks import PlayedBlocks
from tests.support.scheduler_bench import PAGE, Bench


class TieredBench(Bench):
    """A bench with tiers; a page's content is the tokens that its KV depends on."""

    def __init__(self, *, write="through", objects=None, batch=2, **options):
        super().__init__(**options)
        self.clock = FakeClock()
        self.blocks = PlayedBlocks(self.cache.num_pages)
        if objects is not None:
            self.blocks.objects = objects
        self.cache.write_back = WriteBack(write)
        self.page_bytes = 4 * 2**20 // batch
        self.tiers = Tiers(
            self.cache,
            self.cache.write_back,
            self.blocks,
            page_bytes=self.page_bytes,
            clock=self.clock,
        )
        self.scheduler.loader = self.tiers.loader
        self.costs(prefill=100, load=1000)

    def costs(self, *, prefill, load):
        """Tokens per second of computing and of loading."""
        for _ in range(60):
            self.tiers.loader.costs.observe_prefill(1000, 1000 / prefill)
            self.tiers.loader.costs.observe_load(1000, 1000 * PAGE / load)
            self.tiers.loader.costs.observe_find(0.001)

    def audit(self):
        holds = [c.hold for c in self.choices if c.hold is not None]
        self.cache.audit(holds + self.tiers.holds())

    def step(self):
        self.tiers.poll()
        chunks = self.scheduler.schedule()
        self.tiers.start()
        for chunk in chunks:
            self._compute(chunk)
        for chunk in chunks:
            self.scheduler.computed(chunk)
            if chunk.samples and chunk.choice.request.first_token_s is None:
                chunk.choice.request.first_token_s = self.clock.now()
        for chunk in chunks:
            if chunk.samples:
                for choice in (chunk.choice, *self.scheduler.fork(chunk.choice)):
                    self._put_out(choice)
        self.audit()
        return {(c.choice.request.order, c.choice.index): (c.start, c.stop) for c in chunks}

    def _compute(self, chunk):
        choice = chunk.choice
        assert chunk.start == choice.computed < chunk.stop <= len(choice.hold.pages) * PAGE
        writing = {page for load in self.blocks.jobs("load") for page in load.page_ids}
        for block in range(chunk.start // PAGE):
            content = self.blocks.pages[choice.hold.pages[block]]
            assert content == choice.tokens(0, (block + 1) * PAGE), f"block {block} of {chunk}"
        for position in range(chunk.start, chunk.stop):
            page = choice.hold.pages[position // PAGE]
            assert page not in writing, "computes where a load still writes"
            assert self.cache._pool.references(page) == 1, "writes to a shared page"
            self.blocks.pages[page] = choice.tokens(0, position + 1)

    def run_all(self, limit=3000):
        """Steps with all jobs done at once."""
        for _ in range(limit):
            if not self.scheduler.has_work:
                self.tiers.flush(1.0)
                return
            self.step()
            self.blocks.end_all()
            self.clock.advance(0.01)
        raise AssertionError("no progress")
