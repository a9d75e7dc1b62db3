"""What an engine says of itself in numbers."""

import dataclasses

from inlay.cache import KvCache, TierCounts, Tiers
from inlay.core.instance_messages import LoadReport, StepSample
from inlay.core.messages import EngineStats
from inlay.engine.load import work_ahead
from inlay.engine.requests import Requests
from inlay.engine.runner import Runner
from inlay.engine.scheduler import Scheduler
from inlay.engine.steps import Steps


@dataclasses.dataclass(slots=True, kw_only=True)
class Gauges:
    """Reads the parts of one engine.

    Attributes:
        has_store: other instances share the tiers, so that dispatchers ask what loading takes.
        tiers: set while there is no request, as everywhere.
    """

    cache: KvCache
    scheduler: Scheduler
    requests: Requests
    runner: Runner
    steps: Steps
    has_store: bool
    tiers: Tiers | None = None

    def stats(self) -> EngineStats:
        """Gauges and totals now."""
        counts = self.cache.counts()
        tiers = TierCounts() if self.tiers is None else self.tiers.counts
        exchange = self.requests.exchange
        return EngineStats(
            running=len(self.scheduler.running),
            waiting=self.requests.num_waiting,
            pages_total=counts.total,
            pages_free=counts.free,
            pages_cached=counts.idle,
            preemptions=self.scheduler.preemptions,
            **dataclasses.asdict(self.steps.totals),
            tier_loaded_bytes=tiers.loaded_bytes,
            tier_written_bytes=tiers.written_bytes,
            tier_cut_tokens=tiers.cut_tokens,
            tier_failures=tiers.failures,
            tier_lost_blocks=tiers.lost_blocks,
            **self.runner.expert_counts(),
            kv_routes=() if exchange is None else exchange.routes(),
        )

    def load_report(self, run_id: str, samples: tuple[StepSample, ...]) -> LoadReport:
        """How loaded it is now. O(live choices); see `work_ahead`."""
        counts = self.cache.counts()
        ahead = work_ahead(self.requests.live.values(), self.cache)
        costs = self.tiers.loader.costs if self.tiers is not None and self.has_store else None
        return LoadReport(
            run_id=run_id,
            waiting=self.requests.num_waiting,
            running=len(self.scheduler.running),
            receiving=ahead.receiving,
            prefill_tokens=ahead.prefill_tokens,
            context_tokens=ahead.context_tokens,
            pages_total=counts.total,
            pages_free=counts.free,
            pages_cached=counts.idle,
            samples=samples,
            find_s=None if costs is None else costs.find_s,
            load_block_s=None if costs is None else costs.load_s(1),
        )
