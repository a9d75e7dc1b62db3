"""An engine as an instance of a deployment: what it tells those who subscribe."""

import hashlib
import itertools
import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING

from inlay import __version__
from inlay.cache import BlockStored
from inlay.core.clock import Clock
from inlay.core.errors import InstanceVersionError
from inlay.core.failures import failure_message
from inlay.core.instance_messages import (
    PROTOCOL,
    InstanceInfo,
    KvChange,
    KvEvents,
    KvSnapshot,
    LoadReport,
    Role,
    StepSample,
    Subscribe,
)
from inlay.core.instance_setup import InstanceSetup
from inlay.engine.peers import Peer, Peers

if TYPE_CHECKING:
    from inlay.engine.engine import Engine

log = logging.getLogger(__name__)

_REPORT_S = 0.02
_IDLE_REPORT_S = 1.0
_MAX_SAMPLES = 64
_KEY_CHECK_BYTES = 8


def new_run_id() -> str:
    """A name for one life of an instance."""
    return secrets.token_hex(8)


class Instance:
    """Tells subscribers which blocks the engine has and how loaded it is.

    Block events and samples of steps are kept only while somebody subscribes.

    Args:
        run_id: of this process.
    """

    def __init__(
        self, setup: InstanceSetup, run_id: str, engine: "Engine", peers: Peers, clock: Clock
    ) -> None:
        self._setup = setup
        self._role = setup.role
        self._run_id = run_id
        self._engine = engine
        self._peers = peers
        self._clock = clock
        self._recording = False
        self._sequence = 0
        self._samples: deque[StepSample] = deque(maxlen=_MAX_SAMPLES)
        self._reported_s = 0.0
        self._changed = False

    @property
    def info(self) -> InstanceInfo:
        """What it is."""
        engine, scheduler = self._engine, self._engine.config.scheduler
        key = engine.namespace.key(engine.config.cache.secret.encode())
        return InstanceInfo(
            name=self._setup.name,
            run_id=self._run_id,
            role=self._role,
            version=__version__,
            engine=engine.info,
            namespace=engine.namespace,
            key_check=hashlib.blake2b(key).digest()[:_KEY_CHECK_BYTES],
            transfer=engine.exchange_address,
            host=self._setup.reached_at,
            max_running=scheduler.max_running,
            max_waiting=scheduler.max_waiting,
            max_batch_tokens=scheduler.max_batch_tokens,
            prefill_chunk=scheduler.prefill_chunk,
        )

    @property
    def sleep_s(self) -> float | None:
        """How long until something is to be said if nothing happens; None: for ever."""
        if not self._recording:
            return None
        return max(0.0, self._reported_s + self._pause_s - self._clock.now())

    def subscribe(self, peer: Peer, message: Subscribe) -> None:
        """Tell a peer everything, and from now on what changes."""
        if message.protocol != PROTOCOL:
            error = InstanceVersionError(
                f"instance {self._setup.name} speaks protocol {PROTOCOL} (Inlay {__version__}) and "
                f"dispatcher {message.dispatcher} speaks {message.protocol} (Inlay "
                f"{message.version}): run the same Inlay on both"
            )
            log.warning("%s", error)
            self._peers.send([peer], failure_message(error))
            return
        peer.name = f"dispatcher {message.dispatcher}"
        if self._recording:
            self._tell_blocks()  # what came before the snapshot is for the others
        else:
            self._record(True)
        peer.subscribed = True
        log.info("%s subscribes", peer.name)
        for answer in (
            self.info,
            self._engine.load_progress,
            KvSnapshot(
                run_id=self._run_id,
                sequence=self._sequence,
                digests=self._engine.cache.digests(),
            ),
            self._load(),
        ):
            self._peers.send([peer], answer)

    def set_role(self, role: Role) -> None:
        """Take another role, and tell all subscribers."""
        if role != self._role:
            log.info("instance %s: role %s, was %s", self._setup.name, role, self._role)
        self._role = role
        self._peers.send(self._peers.subscribers, self.info)

    def after_step(self, worked: bool) -> None:
        """Say what changed; `worked`: something was done since the last call."""
        if not self._recording:
            return
        if not self._peers.subscribers:
            self._record(False)
            return
        self._changed = self._changed or worked
        self._tell_blocks()
        now_s = self._clock.now()
        if now_s - self._reported_s >= self._pause_s:
            self._reported_s, self._changed = now_s, False
            report = self._load(tuple(self._samples))
            self._samples.clear()
            self._peers.send(self._peers.subscribers, report)

    @property
    def _pause_s(self) -> float:
        return _REPORT_S if self._changed else _IDLE_REPORT_S

    def _record(self, on: bool) -> None:
        self._recording = on
        self._engine.cache.record_events(on)
        self._samples.clear()
        self._engine.step_samples = self._samples if on else None

    def _tell_blocks(self) -> None:
        events = self._engine.cache.take_events()
        if not events:
            return
        self._sequence += 1
        changes = tuple(
            KvChange(stored, b"".join(event.digest for event in run))
            for stored, run in itertools.groupby(events, lambda e: isinstance(e, BlockStored))
        )
        message = KvEvents(run_id=self._run_id, sequence=self._sequence, changes=changes)
        self._peers.send(self._peers.subscribers, message)

    def _load(self, samples: tuple[StepSample, ...] = ()) -> LoadReport:
        return self._engine.load_report(self._run_id, samples)
