"""What an instance tells those who subscribe: what it is, which blocks it has, how loaded it is."""

import logging
import secrets
from typing import Protocol

from inlay import __version__
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
from inlay.core.instance_peers import Peer, Peers
from inlay.core.messages import LoadProgress

MAX_SAMPLES = 512
"""Steps that a report tells of. Between two reports, 20 ms, the smallest models make a hundred."""

log = logging.getLogger(__name__)

_REPORT_S = 0.02
_IDLE_REPORT_S = 1.0


def new_run_id() -> str:
    """A name for one life of an instance."""
    return secrets.token_hex(8)


class NewsSource(Protocol):
    """Who knows what there is to tell of one instance."""

    def info(self, role: Role) -> InstanceInfo:
        """What the instance is, in a role."""
        ...

    @property
    def load_progress(self) -> LoadProgress:
        """How much of its weights is in memory."""
        ...

    def digests(self) -> bytes:
        """All blocks that it has, 16 bytes each, joined, parents before their children."""
        ...

    def record(self, on: bool) -> None:
        """Somebody subscribes from now on, or nobody does any more."""
        ...

    def take_changes(self) -> tuple[KvChange, ...]:
        """What happened to blocks since the last call, while somebody subscribed."""
        ...

    def take_samples(self) -> tuple[StepSample, ...]:
        """Steps since the last call, while somebody subscribed."""
        ...

    def load_report(self, samples: tuple[StepSample, ...] = ()) -> LoadReport:
        """How loaded it is now."""
        ...


class InstanceNews:
    """Tells subscribers of one instance. Nothing here blocks.

    Args:
        run_id: of this process.
    """

    def __init__(
        self, name: str, role: Role, run_id: str, source: NewsSource, peers: Peers, clock: Clock
    ) -> None:
        self._name = name
        self._role = role
        self._run_id = run_id
        self._source = source
        self._peers = peers
        self._clock = clock
        self._recording = False
        self._sequence = 0
        self._reported_s = 0.0
        self._changed = False

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
                f"instance {self._name} speaks protocol {PROTOCOL} (Inlay {__version__}) and "
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
            self._source.info(self._role),
            self._source.load_progress,
            KvSnapshot(
                run_id=self._run_id, sequence=self._sequence, digests=self._source.digests()
            ),
            self._source.load_report(),
        ):
            self._peers.send([peer], answer)

    def set_role(self, role: Role) -> None:
        """Take another role, and tell all subscribers."""
        if role != self._role:
            log.info("instance %s: role %s, was %s", self._name, role, self._role)
        self._role = role
        self.introduce()

    def introduce(self) -> None:
        """Tell all subscribers what it is now."""
        self._peers.send(self._peers.subscribers, self._source.info(self._role))

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
            report = self._source.load_report(self._source.take_samples())
            self._peers.send(self._peers.subscribers, report)

    @property
    def _pause_s(self) -> float:
        return _REPORT_S if self._changed else _IDLE_REPORT_S

    def _record(self, on: bool) -> None:
        self._recording = on
        self._source.record(on)

    def _tell_blocks(self) -> None:
        changes = self._source.take_changes()
        if changes:
            self._sequence += 1
            message = KvEvents(run_id=self._run_id, sequence=self._sequence, changes=changes)
            self._peers.send(self._peers.subscribers, message)
