"""Replays a trace in a simulated world, with what serves: index, state, policy and admission.

For each request, in order of arrival: time goes on until then, what instances said is heard, the
request's blocks are looked for, an instance is chosen, the request goes there. One that waits for a
copy of blocks, made room for another one, or was lost with its instance, is chosen for once more. A
decision sees what a dispatcher would see at that time, and no more.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np

from inlay.cluster.admission import Admission
from inlay.cluster.decision import RequestView
from inlay.cluster.policies import RoleConfig, RolePlanner, make_policy
from inlay.cluster.prefix_index import PrefixIndex
from inlay.cluster.state import ClusterState
from inlay.cluster.store_index import StoreIndex
from inlay.cluster.timing import TimingModel, TransferModel
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import Role
from inlay.sim.agenda import Agenda
from inlay.sim.asked import Asked
from inlay.sim.collector import Collector
from inlay.sim.copies import Copies
from inlay.sim.results import Results
from inlay.sim.scenario import Change, Kind, Loss, RoleChange, Scenario
from inlay.sim.step_time import StepTime, calibrated
from inlay.sim.tier import TIERS
from inlay.sim.trace import Trace
from inlay.sim.world import DIGEST_BYTES, Copied, Undivided, World, names_of

_Timed = tuple[StepTime, int, int, tuple[float, ...] | None]


class Simulation:
    """One scenario, to be run on one trace.

    Attributes:
        world: what instances do.
        index, state: what is known of them.
        too_late: losses and changes of roles that came when all requests were over.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._policy = make_policy(scenario.policy, scenario.policy_options, seed=scenario.seed)
        self._chooses = Admission(self._policy, scenario.admission, scenario.weights)
        self.index = PrefixIndex()
        self._store = None if scenario.store is None else StoreIndex()
        token_bytes = max(kind.instance.token_bytes for kind in scenario.kinds)
        self.state = ClusterState(
            scenario.page_tokens,
            int(token_bytes * scenario.page_tokens),
            copies=scenario.copies and scenario.linked,
        )
        self.world = World(
            seed=scenario.seed,
            index=self.index,
            state=self.state,
            report_s=scenario.report_s,
            news_delay_s=scenario.news_delay_s,
            link_latency_s=scenario.link_latency_s,
            samples=scenario.learn,
            store=scenario.store,
            store_index=self._store,
            page_tokens=scenario.page_tokens,
        )
        self._copies = Copies(self.world, self.index)
        self._live: dict[int, Asked] = {}
        self._collected = Collector()
        self._kinds: list[tuple[Kind, TimingModel]] = []  # by slot
        self._roles: list[Role] = []
        self._room: list[int] = []  # tokens that each instance can hold
        timings: dict[_Timed, TimingModel] = {}
        for kind in scenario.kinds:
            for _ in range(kind.count):
                self._add(kind, timings)
        self.too_late: list[Change] = []
        self._ended = False  # no request is to come
        self._agenda = Agenda()
        self._role_changes = 0  # that followed from loads
        self._role_config = RoleConfig()
        if scenario.roles == "auto":
            self._planner = RolePlanner(self._role_config, scenario.slo)
            self._agenda.at(self._role_config.period_s, self._plan_roles)
        self._lost: dict[int, list[tuple[int, int]]] = {}  # by slot: requests, and their tokens
        for loss in sorted(scenario.losses, key=lambda loss: (loss.at_s, loss.slot)):
            self._agenda.at(loss.at_s, partial(self._lose, loss))
        for change in scenario.role_changes:
            self._agenda.at(change.at_s + scenario.news_delay_s, partial(self._change_role, change))

    def _add(self, kind: Kind, timings: dict[_Timed, TimingModel]) -> None:
        one = kind.instance
        timed = (one.step_time, one.experts, one.experts_per_token, kind.believed)
        if timed not in timings:
            timings[timed] = (
                calibrated(*timed[:3])
                if kind.believed is None
                else TimingModel(np.array(kind.believed))
            )
        slot = self.world.add(one)
        self.index.add()
        self._kinds.append((kind, timings[timed]))
        self._roles.append(kind.role)
        self._room.append(one.num_pages * one.page_tokens)
        self._join(slot)

    def _join(self, slot: int) -> None:
        kind, timing = self._kinds[slot]
        one = kind.instance
        self.state.join(
            slot,
            self._roles[slot],
            timing,
            TransferModel(
                latency_s=self._scenario.link_latency_s, bandwidth=max(one.out_bytes_per_s, 1.0)
            ),
            prefill_chunk=one.prefill_chunk,
            max_running=one.max_running,
            pages_total=one.num_pages,
        )

    def run(self, trace: Trace | Iterable[Trace]) -> Results:
        """Replay a trace to its end, once: `replay`, with all results in memory.

        Args:
            trace: whole, or as consecutive parts.

        Raises:
            ConfigError: as `replay`.
        """
        parts = (trace,) if isinstance(trace, Trace) else trace
        return Results.joined(list(self.replay(parts)))

    def replay(self, trace: Iterable[Trace]) -> Iterator[Results]:
        """Replay a trace in consecutive parts, of which one at a time is in memory.

        Returns:
            What came of each part, in order, when all its requests are over; at least one.

        Raises:
            ConfigError: its blocks have another length than the pages.

        Cost: a decision for each request, and about 0.1 us for each token of an answer. Memory for
        requests under way, the blocks that instances have, and about 100 bytes for each request of
        parts that are not over.
        """
        told = self._totals()
        for part in itertools.chain(trace, [None]):
            if part is None:
                self._ended = True
                self._pass(np.inf)
            else:
                self._replay(part)
            self._collected.served(self.world.outcomes())
            for columns, refusals in self._collected.complete(ended=part is None):
                totals = self._totals()
                done = {name: totals[name] - told[name] for name in totals}
                yield Results(
                    **columns,
                    **done,
                    refusals=refusals,
                    groups=self._collected.groups,
                )
                told = totals

    def _totals(self) -> dict[str, Any]:
        """What instances have done so far, as `Results` has it."""
        world, slots = self.world, range(len(self._room))
        return {
            "busy_s": np.array([world.busy_s(slot) for slot in slots]),
            "steps": np.array([world.num_steps(slot) for slot in slots]),
            "sent_bytes": np.array([world.sent_bytes(slot) for slot in slots]),
            "copied_blocks": self._copies.copied_blocks,
            "tier_bytes": np.array(
                [[world.tier_bytes(slot, tier) for tier in TIERS] for slot in slots]
            ),
            "lost_blocks": sum(world.lost_blocks(slot) for slot in slots),
            "gap_counts": world.gap_counts(),
            "role_changes": self._role_changes,
        }

    def _replay(self, trace: Trace) -> None:
        """Submit the requests of one part."""
        scenario, page_tokens = self._scenario, self._scenario.page_tokens
        if trace.block_tokens != page_tokens:
            raise ConfigError(
                f"the trace has blocks of {trace.block_tokens} tokens, the scenario pages of "
                f"{page_tokens}: they must be the same"
            )
        names, tenants = names_of(trace.blocks), trace.groups
        classes = [scenario.groups.get(group, scenario.slo) for group in trace.groups]
        first = self._collected.begin(trace)
        columns = zip(
            trace.arrival_s.tolist(),
            trace.input_tokens.tolist(),
            trace.output_tokens.tolist(),
            trace.block_starts.tolist(),
            trace.group.tolist(),
            strict=False,  # one more block start than requests
        )
        for request, (now_s, num_tokens, outputs, start, group) in enumerate(columns, first):
            self._pass(now_s)
            stop = start + num_tokens // page_tokens
            view = RequestView(
                num_tokens=num_tokens,
                digests=names[start * DIGEST_BYTES : stop * DIGEST_BYTES],
                priority=classes[group].priority,
                tenant=tenants[group],
                slo=classes[group],
            )
            self._send(Asked(request, view, outputs, now_s), now_s)

    def _pass(self, until_s: float) -> None:
        """Time goes on, and with it what happens at given times."""
        while (due := self._agenda.take(until_s)) is not None:
            time_s, act = due
            self._advance(time_s)
            act(time_s)
        self._advance(until_s)

    def _advance(self, until_s: float) -> None:
        """Time goes on; whoever waits for a copy is chosen for when it has come."""
        while not self.world.advance(until_s):
            self._hear()
        self._hear()

    def _send(self, asked: Asked, now_s: float) -> None:
        """Send a request where it is best, unless it is refused or waits for a copy."""
        view = asked.view
        matches_S = self.index.match(view.digests, now_s)
        if self._store is not None:
            blocks = self._store.match(view.digests)
            view = msgspec.structs.replace(view, store_blocks=blocks)
        # What has begun is not refused: its client has had a part of the answer.
        chooses = self._policy if asked.begun else self._chooses
        decision = chooses.choose(view, matches_S, self.state, now_s)
        if decision.refusal is not None:
            self._refuse(asked, decision.refusal.reason)
            return
        prefill, decode = decision.prefill, decision.decode
        left = asked.outputs - asked.produced
        if view.num_tokens + left > min(self._room[prefill], self._room[decode]):
            self._refuse(asked, "it does not fit on the instance that was chosen")
            return
        copy = decision.copy
        if copy is not None and not asked.copied and not self._lost.keys() & {copy.source, decode}:
            asked.copied = True  # once: what has come, or has not, is seen by the next choice
            self._copies.wait(copy, asked)
            return
        ahead = decision.replicate
        if ahead is not None and not self._lost and view.num_tokens <= self._room[ahead.target]:
            self._copies.ahead(ahead, asked)
        victim = None if decision.preempt is None else self._take_back(int(decision.preempt))
        if not asked.begun:
            expected_s = now_s + decision.ttft_s - asked.arrival_s
            self._collected.expected(asked.number, expected_s)
        if prefill in self._lost:  # which is noticed now
            prefill = decode
            decision = msgspec.structs.replace(decision, prefill=decode)
        chooses.sent(view, decision, now_s)
        self.state.dispatched(str(asked.number), view, decision, now_s)
        for slot in {prefill, decode}:
            self.index.expect(slot, view.digests, now_s)
        if decode in self._lost:
            self._lost[decode].append((asked.number, asked.produced))
        else:
            self.world.submit(
                asked.number,
                arrival_s=asked.arrival_s,
                prompt_tokens=view.num_tokens,
                output_tokens=left,
                blocks=view.digests,
                prefill=prefill,
                decode=decode,
                priority=view.priority,
            )
        asked.decision = decision
        self._live[asked.number] = asked
        if victim is not None:
            self.state.finished(str(victim.number), None)
            self._send(victim, now_s)

    def _refuse(self, asked: Asked, reason: str) -> None:
        self._collected.refused(asked.number, reason)
        self._live.pop(asked.number, None)  # it may have begun, where it was lost

    def _take_back(self, number: int) -> Asked | None:
        """Take best-effort work away from its instance, unless it has just finished there."""
        victim = self._live[number]
        assert victim.decision is not None
        produced = self.world.take_back(number, victim.decision.decode)
        if produced is None:
            return None
        victim.taken_back(produced)
        return victim

    # Instances that are lost, and come back.

    def _lose(self, loss: Loss, now_s: float) -> None:
        self._note_if_late(loss)
        self._lost[loss.slot] = self.world.lose(loss.slot)
        noticed_s = now_s + self._scenario.news_delay_s
        self._agenda.at(noticed_s, partial(self._notice, loss.slot))
        if loss.back_s < math.inf:
            self._agenda.at(now_s + loss.back_s, partial(self._come_back, loss.slot))

    def _notice(self, slot: int, now_s: float) -> None:
        """It is known that an instance is lost: its requests go on elsewhere."""
        self.state.leave(slot)
        self.index.remove(slot)
        for number, produced in self._lost.pop(slot):
            asked = self._live[number]
            asked.taken_back(produced)
            self._send(asked, now_s)

    def _come_back(self, slot: int, now_s: float) -> None:
        self.world.come_back(slot)
        others = []
        while (free := self.index.add()) != slot:
            others.append(free)
        for free in others:
            self.index.remove(free)
        self._join(slot)

    def _change_role(self, change: RoleChange, now_s: float) -> None:
        self._note_if_late(change)
        self._roles[change.slot] = change.role
        if change.slot in self.state.slots:
            self.state.set_role(change.slot, change.role)

    def _plan_roles(self, now_s: float) -> None:
        """As a dispatcher does it, now and then: another role where the mix of work has shifted."""
        if self._over:
            return
        planned = self._planner.plan(self.state, now_s)
        if planned is not None:
            self._role_changes += 1
            change = RoleChange(at_s=now_s, slot=planned.slot, role=planned.role)
            heard_s = now_s + self._scenario.news_delay_s
            self._agenda.at(heard_s, partial(self._change_role, change))
        self._agenda.at(now_s + self._role_config.period_s, self._plan_roles)

    @property
    def _over(self) -> bool:
        """Whether all requests are."""
        return self._ended and not self._live and not self._copies.awaited

    def _note_if_late(self, change: Change) -> None:
        if self._over:
            self.too_late.append(change)

    def _undivided(self, request: int, now_s: float) -> None:
        """The prompt of a request that was divided is computed where it decodes."""
        asked = self._live[request]
        assert asked.decision is not None
        asked.decision = msgspec.structs.replace(asked.decision, prefill=asked.decision.decode)
        self.state.finished(str(request), None)
        self.state.dispatched(str(request), asked.view, asked.decision, now_s)

    def _hear(self) -> None:
        """Take over what instances have said, which is not for the state alone."""
        while heard := self.world.news():
            for news in heard:
                if isinstance(news, Undivided):
                    self._undivided(news.request, news.time_s)
                elif isinstance(news, Copied):
                    asked = self._copies.heard(news)
                    if asked is not None:
                        self._send(asked, news.time_s)
        for number in self.world.finished():
            del self._live[number]
