"""What a dispatcher knows of its instances, and where it sends requests by that.

Keeps the prefix index, the cluster state and the timing models in step: they have the same slots
and hear the same news. The policy sees them as they are at the moment of a choice.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.decision_log import DecisionLog
from inlay.cluster.policies import Blocks, Policy
from inlay.cluster.prefix_index import PrefixIndex
from inlay.cluster.state import ClusterState
from inlay.cluster.store_index import StoreIndex
from inlay.cluster.timing import TimingModel, prior_for
from inlay.core.errors import ArgumentError
from inlay.core.instance_messages import InstanceInfo, KvEvents, KvSnapshot, LoadReport, Role


class Chooses(Protocol):
    """A policy, or one behind a gate."""

    def choose(
        self, request: RequestView, matches_S: Blocks, state: ClusterState, now_s: float
    ) -> Decision:
        """See `Policy.choose`."""
        ...


class Chooser:
    """Index, state, timing and policy of one dispatcher. Called on one thread.

    Args:
        policy: chooses.
        admission: the policy behind a gate, for requests that may be refused; None takes all.
        timing: directory of timing models to start from, `<timing_kind>.json` each.
        store: what the store has; None: there is none.

    Attributes:
        log: the latest decisions.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        admission: Chooses | None = None,
        timing: Path | None = None,
        store: StoreIndex | None = None,
    ) -> None:
        self.log = DecisionLog()
        self._policy = policy
        self._admission = admission
        self._timing_directory = timing
        self._index = PrefixIndex()
        self._store = store
        self._state: ClusterState | None = None
        self._timing: dict[str, TimingModel] = {}
        self._names: dict[int, str] = {}

    @property
    def policy(self) -> Policy:
        """Who chooses."""
        return self._policy

    @property
    def index(self) -> PrefixIndex:
        """Which instance has which blocks; to be read."""
        return self._index

    @property
    def state(self) -> ClusterState:
        """Load and timing of the instances."""
        if self._state is None:
            raise ArgumentError("no instance has joined: there is no state yet")
        return self._state

    def least_s(self) -> dict[str, float]:
        """By objective, what it takes on the quickest instance when it is idle.

        Empty before a step was seen.
        """
        known = [timing for timing in self._timing.values() if timing.num_steps]
        if not known:
            return {}
        step_s = min(timing.decode_s(1, 1) for timing in known)
        return {
            "ttft": min(timing.prefill_s(1, 0) for timing in known),
            "tbt": step_s,
            "itl": step_s,
        }

    # Who is there

    def join(self, info: InstanceInfo, now_s: float) -> int:
        """An instance takes requests from now on; returns its slot."""
        engine = info.engine
        if self._state is None:
            self._state = ClusterState(engine.page_tokens, engine.page_bytes)
            self._state.copies = bool(info.transfer)
        slot = self._index.add()
        self._state.join(
            slot,
            _role(info),
            self._timing_of(info),
            prefill_chunk=info.prefill_chunk,
            max_running=info.max_running,
            pages_total=engine.num_pages,
        )
        self._names = {**self._names, slot: info.name}  # decisions in the log keep the old one
        return slot

    def leave(self, slot: int) -> None:
        """An instance is gone; its slot may be another one's soon."""
        self.state.leave(slot)
        self._index.remove(slot)
        self._names = {at: name for at, name in self._names.items() if at != slot}

    def changed(self, slot: int, info: InstanceInfo) -> None:
        """An instance said again what it is."""
        if self.state.role(slot) != _role(info):
            self.state.set_role(slot, _role(info))

    def drain(self, slot: int) -> None:
        """Choose an instance no more."""
        self.state.drain(slot)

    def learn(self, slot: int, message: KvSnapshot | KvEvents | LoadReport, now_s: float) -> None:
        """An instance says which blocks it has, or how loaded it is."""
        match message:
            case KvSnapshot():
                self._index.load(slot, message.digests)
            case KvEvents():
                self._index.apply(slot, message.changes)
            case LoadReport():
                self.state.report(slot, message, now_s)

    # Requests

    def choose(
        self,
        request_id: str,
        request: RequestView,
        now_s: float,
        *,
        excluded: Sequence[int] = (),
        admit: bool = True,
        divisible: bool = True,
    ) -> Decision | None:
        """Where a request goes.

        Args:
            request_id: for the log of decisions.
            excluded: slots that would not take it.
            admit: ask admission, too.
            divisible: prompt and output may be computed by different instances.

        Returns:
            None where nobody takes requests but those that are excluded.
        """
        if self._state is None:
            return None
        with self._state.without(excluded):
            if not self._state.num_open:
                return None
            matches_S = self._index.match(request.digests, now_s)
            if self._store is not None:
                blocks = self._store.match(request.digests)
                request = msgspec.structs.replace(request, store_blocks=blocks)
            chooses = self._admission if admit and self._admission is not None else self._policy
            decision = chooses.choose(request, matches_S, self._state, now_s)
            if decision.refusal is None and decision.split and not divisible:
                decision = msgspec.structs.replace(decision, prefill=decision.decode)
        self.log.add(request_id, request, decision, self._names, now_s)
        return decision

    def started(
        self, attempt_id: str, request: RequestView, decision: Decision, now_s: float
    ) -> None:
        """A request was sent where a decision says: its blocks are expected there."""
        self._policy.sent(request, decision, now_s)
        self.state.dispatched(attempt_id, request, decision, now_s)
        for slot in {decision.prefill, decision.decode}:
            self._index.expect(slot, request.digests, now_s)

    def undivided(
        self, attempt_id: str, request: RequestView, decision: Decision, now_s: float
    ) -> None:
        """The prompt of a request that was divided is computed where it decodes."""
        self.state.finished(attempt_id, None)
        decision = msgspec.structs.replace(decision, prefill=decision.decode)
        self.state.dispatched(attempt_id, request, decision, now_s)

    def copied(self, slot: int, digests: bytes, now_s: float) -> None:
        """Blocks have come to an instance, which will say so in a moment.

        Counted earlier, they would draw requests that then compute them.
        """
        self._index.expect(slot, digests, now_s)

    def sending(self, slot: int, size_bytes: int) -> None:
        """An instance has pages to send to another one."""
        self.state.sending(slot, size_bytes)

    def sent(self, slot: int, size_bytes: int, seconds: float | None) -> None:
        """It has sent them.

        Args:
            seconds: what that took; None where it failed, or computing was a part of it.
        """
        self.state.sent(slot, size_bytes, seconds)

    def begun(self, attempt_id: str, now_s: float) -> None:
        """The first output came."""
        self.state.prefill_done(attempt_id, now_s)

    def finished(self, attempt_id: str, output_tokens: int | None) -> None:
        """An attempt is over.

        Args:
            output_tokens: that the request had; None if it was cut off.
        """
        self.state.finished(attempt_id, output_tokens)

    def _timing_of(self, info: InstanceInfo) -> TimingModel:
        """The model of an instance's kind, which all of that kind share."""
        kind = timing_kind(info)
        if kind not in self._timing:
            file = None if self._timing_directory is None else self._timing_directory / kind
            known = file is not None and file.is_file()
            self._timing[kind] = (
                TimingModel.load(file)
                if known and file is not None
                else TimingModel(prior_for(info.engine))
            )
        return self._timing[kind]


def timing_kind(info: InstanceInfo) -> str:
    """Name of the file of an instance's timing model: the same for the same model and hardware."""
    engine = info.engine
    parts = (
        engine.architecture,
        f"{engine.parameters / 1e6:.0f}M",
        engine.weight_format,
        engine.device,
        engine.isa,
        engine.placement,
    )
    return "-".join(re.sub(r"\W+", "_", part) for part in parts if part) + ".json"


def _role(info: InstanceInfo) -> Role:
    """Of an instance; one that can exchange no KV has to compute both."""
    return info.role if info.transfer else "both"
