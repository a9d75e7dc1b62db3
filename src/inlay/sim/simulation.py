"""Replays a trace in a simulated world, with what serves: index, state, policy and admission.

For each request, in order of arrival: time goes on until then, what instances said is heard, the
request's blocks are looked for, an instance is chosen, the request goes there. A decision sees what
a dispatcher would see at that time, and no more.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from inlay.cluster.admission import Admission
from inlay.cluster.decision import RequestView
from inlay.cluster.policies import make_policy
from inlay.cluster.prefix_index import PrefixIndex
from inlay.cluster.state import ClusterState
from inlay.cluster.timing import TimingModel, TransferModel
from inlay.core.errors import ConfigError
from inlay.sim.results import Results
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.step_time import StepTime, calibrated
from inlay.sim.trace import Trace
from inlay.sim.world import DIGEST_BYTES, OUTCOME, Finished, FirstToken, Reported, World, names_of

_Timed = tuple[StepTime, int, int]
_Requests = tuple[NDArray[np.float64], NDArray[np.int32], NDArray[np.int32]]


class Simulation:
    """One scenario, to be run on one trace.

    Attributes:
        world: what instances do.
        index, state: what is known of them.
    """

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._policy = make_policy(scenario.policy, scenario.policy_options, seed=scenario.seed)
        self._chooses = Admission(self._policy, scenario.admission)
        self.index = PrefixIndex()
        self.world = World(
            seed=scenario.seed,
            index=self.index,
            report_s=scenario.report_s,
            news_delay_s=scenario.news_delay_s,
            link_latency_s=scenario.link_latency_s,
            samples=scenario.learn,
        )
        token_bytes = max(kind.instance.token_bytes for kind in scenario.kinds)
        self.state = ClusterState(scenario.page_tokens, int(token_bytes * scenario.page_tokens))
        self._room: list[int] = []  # tokens that each instance can hold
        timings: dict[_Timed, TimingModel] = {}
        for kind in scenario.kinds:
            for _ in range(kind.count):
                self._join(kind, timings)

    def _join(self, kind: Kind, timings: dict[_Timed, TimingModel]) -> None:
        one = kind.instance
        timed = (one.step_time, one.experts, one.experts_per_token)
        if timed not in timings:
            timings[timed] = calibrated(*timed)
        slot = self.world.add(one)
        self.index.add()
        self._room.append(one.num_pages * one.page_tokens)
        self.state.join(
            slot,
            kind.role,
            timings[timed],
            TransferModel(
                latency_s=self._scenario.link_latency_s, bandwidth=max(one.out_bytes_per_s, 1.0)
            ),
            prefill_chunk=one.prefill_chunk,
            max_running=one.max_running,
            pages_total=one.num_pages,
        )

    def run(self, trace: Trace | Iterable[Trace]) -> Results:
        """Replay a trace to its end, once.

        Args:
            trace: whole, or as consecutive parts, of which one at a time is in memory; what is kept
                of a request is about 100 bytes.

        Raises:
            ConfigError: its blocks have another length than the pages.

        Cost: a decision for each request, and about 0.1 us for each token of an answer.
        """
        parts = (trace,) if isinstance(trace, Trace) else trace
        requests: list[_Requests] = []
        outcomes: list[NDArray[np.void]] = []
        refusals: dict[int, str] = {}
        first = 0
        for part in parts:
            self._replay(part, first, refusals)
            first += len(part)
            requests.append((part.arrival_s, part.input_tokens, part.output_tokens))
            outcomes.append(self.world.outcomes())
        self.world.advance(np.inf)
        self._hear()
        outcomes.append(self.world.outcomes())
        return self._results(requests, np.concatenate(outcomes), refusals)

    def _replay(self, trace: Trace, first: int, refusals: dict[int, str]) -> None:
        """Submit the requests of one part, which are numbered from `first` on."""
        page_tokens, slo = self._scenario.page_tokens, self._scenario.slo
        if trace.block_tokens != page_tokens:
            raise ConfigError(
                f"the trace has blocks of {trace.block_tokens} tokens, the scenario pages of "
                f"{page_tokens}: they must be the same"
            )
        names, tenants = names_of(trace.blocks), trace.groups
        columns = zip(
            trace.arrival_s.tolist(),
            trace.input_tokens.tolist(),
            trace.output_tokens.tolist(),
            trace.block_starts.tolist(),
            trace.group.tolist(),
            strict=False,  # one more block start than requests
        )
        for request, (now_s, num_tokens, outputs, start, group) in enumerate(columns, first):
            self.world.advance(now_s)
            self._hear()
            stop = start + num_tokens // page_tokens
            digests = names[start * DIGEST_BYTES : stop * DIGEST_BYTES]
            view = RequestView(
                num_tokens=num_tokens, digests=digests, tenant=tenants[group], slo=slo
            )
            refusal = self._send(request, view, outputs, now_s)
            if refusal:
                refusals[request] = refusal

    def _send(self, request: int, view: RequestView, outputs: int, now_s: float) -> str:
        """Send a request where it is best; returns why not, if it is refused."""
        matches_S = self.index.match(view.digests, now_s)
        decision = self._chooses.choose(view, matches_S, self.state, now_s)
        if decision.refusal is not None:
            return decision.refusal.reason
        prefill, decode = decision.prefill, decision.decode
        if view.num_tokens + outputs > min(self._room[prefill], self._room[decode]):
            return "it does not fit on the instance that was chosen"
        self._chooses.sent(view, decision, now_s)
        self.state.dispatched(str(request), view, decision, now_s)
        for slot in {prefill, decode}:
            self.index.expect(slot, view.digests, now_s)
        self.world.submit(
            request,
            arrival_s=now_s,
            prompt_tokens=view.num_tokens,
            output_tokens=outputs,
            blocks=view.digests,
            prefill=prefill,
            decode=decode,
        )
        return ""

    def _hear(self) -> None:
        """Take over what instances have said."""
        state = self.state
        for news in self.world.news():
            match news:
                case FirstToken(time_s, request):
                    state.prefill_done(str(request), time_s)
                case Finished(_, request, output_tokens):
                    state.finished(str(request), output_tokens)
                case Reported(time_s, slot, report):
                    state.report(slot, report, time_s)

    def _results(
        self, requests: list[_Requests], outcomes: NDArray[np.void], refusals: dict[int, str]
    ) -> Results:
        arrivals, inputs, outputs = zip(*requests, strict=True) if requests else ((), (), ())
        numbers = outcomes["request"].astype(np.int64)
        length = sum(map(len, arrivals))
        columns = {}
        for name in (OUTCOME.names or ())[1:]:
            values = outcomes[name]
            missing: float | int = np.nan if values.dtype == np.float64 else -1
            column = np.full(length, missing)
            column[numbers] = values
            columns[name] = column
        columns["arrival_s"] = np.concatenate((np.empty(0), *arrivals))
        slots = range(len(self._room))
        return Results(
            **columns,
            refusals=refusals,
            input_tokens=np.concatenate((np.empty(0, np.int32), *inputs)),
            output_tokens=np.concatenate((np.empty(0, np.int32), *outputs)),
            busy_s=np.array([self.world.busy_s(slot) for slot in slots]),
            steps=np.array([self.world.num_steps(slot) for slot in slots]),
            sent_bytes=np.array([self.world.sent_bytes(slot) for slot in slots]),
        )
