"""An engine as an instance of a deployment: what there is to tell those who subscribe."""

import itertools
from collections import deque
from typing import TYPE_CHECKING

from inlay import __version__
from inlay.cache import BlockStored
from inlay.core.instance_messages import InstanceInfo, KvChange, LoadReport, Role, StepSample
from inlay.core.instance_news import MAX_SAMPLES
from inlay.core.instance_setup import InstanceSetup
from inlay.core.messages import LoadProgress

if TYPE_CHECKING:
    from inlay.engine.engine import Engine


class EngineNews:
    """What an engine has to tell: see `core.instance_news.NewsSource`.

    Block events and samples of steps are kept only while somebody subscribes.

    Args:
        run_id: of this process.
    """

    def __init__(self, setup: InstanceSetup, run_id: str, engine: "Engine") -> None:
        self._setup = setup
        self._run_id = run_id
        self._engine = engine
        self._samples: deque[StepSample] = deque(maxlen=MAX_SAMPLES)

    def info(self, role: Role) -> InstanceInfo:
        """What it is."""
        engine, scheduler = self._engine, self._engine.config.scheduler
        return InstanceInfo(
            name=self._setup.name,
            run_id=self._run_id,
            role=role,
            version=__version__,
            engine=engine.info,
            namespace=engine.namespace,
            key_check=engine.namespace.key_check(engine.config.cache.secret.encode()),
            transfer=engine.exchange_address,
            host=self._setup.reached_at,
            max_running=scheduler.max_running,
            max_waiting=scheduler.max_waiting,
            max_batch_tokens=scheduler.max_batch_tokens,
            prefill_chunk=scheduler.prefill_chunk,
            weights=engine.served_weights,
        )

    @property
    def load_progress(self) -> LoadProgress:
        """How much of the weights is in memory."""
        return self._engine.load_progress

    def digests(self) -> bytes:
        """All blocks of its cache."""
        return self._engine.cache.digests()

    def record(self, on: bool) -> None:
        """Keep events and samples, or forget them."""
        self._engine.cache.record_events(on)
        self._samples.clear()
        self._engine.step_samples = self._samples if on else None

    def take_changes(self) -> tuple[KvChange, ...]:
        """What happened to blocks since the last call."""
        events = self._engine.cache.take_events()
        return tuple(
            KvChange(stored, b"".join(event.digest for event in run))
            for stored, run in itertools.groupby(events, lambda e: isinstance(e, BlockStored))
        )

    def take_samples(self) -> tuple[StepSample, ...]:
        """Steps since the last call."""
        samples = tuple(self._samples)
        self._samples.clear()
        return samples

    def load_report(self, samples: tuple[StepSample, ...] = ()) -> LoadReport:
        """How loaded it is now."""
        return self._engine.load_report(self._run_id, samples)
