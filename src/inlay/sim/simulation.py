"""Replays a trace in a simulated world, with what serves: index, state, policy and admission.

For each request, in order of arrival: time goes on until then, what instances said is heard, the
request's blocks are looked for, an instance is chosen, the request goes there. A decision sees what
a dispatcher would see at that time, and no more.
"""

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
        timings: dict[StepTime, TimingModel] = {}
        for kind in scenario.kinds:
            for _ in range(kind.count):
                self._join(kind, timings)

    def _join(self, kind: Kind, timings: dict[StepTime, TimingModel]) -> None:
        one = kind.instance
        if one.step_time not in timings:
            timings[one.step_time] = calibrated(one.step_time)
        slot = self.world.add(one)
        self.index.add()
        self._room.append(one.num_pages * one.page_tokens)
        self.state.join(
            slot,
            kind.role,
            timings[one.step_time],
            TransferModel(
                latency_s=self._scenario.link_latency_s, bandwidth=max(one.out_bytes_per_s, 1.0)
            ),
            prefill_chunk=one.prefill_chunk,
            max_running=one.max_running,
            pages_total=one.num_pages,
        )

    def run(self, trace: Trace) -> Results:
        """Replay a trace to its end.

        Cost: a decision for each request, and about 5 ns for each token of an answer.
        """
        if trace.block_tokens != self._scenario.page_tokens:
            raise ConfigError(
                f"the trace has blocks of {trace.block_tokens} tokens, the scenario pages of "
                f"{self._scenario.page_tokens}: they must be the same"
            )
        refusals: dict[int, str] = {}
        names = names_of(trace.blocks)
        arrivals = trace.arrival_s.tolist()
        prompts, outputs = trace.input_tokens.tolist(), trace.output_tokens.tolist()
        starts = trace.block_starts.tolist()
        groups, tenants = trace.group.tolist(), trace.groups
        world, index, state = self.world, self.index, self.state
        slo, page_tokens = self._scenario.slo, self._scenario.page_tokens
        for request, now_s in enumerate(arrivals):
            world.advance(now_s)
            self._hear()
            start = starts[request]
            stop = start + prompts[request] // page_tokens
            digests = names[start * DIGEST_BYTES : stop * DIGEST_BYTES]
            view = RequestView(
                num_tokens=prompts[request],
                digests=digests,
                tenant=tenants[groups[request]],
                slo=slo,
            )
            matches_S = index.match(digests, now_s)
            decision = self._chooses.choose(view, matches_S, state, now_s)
            if decision.refusal is not None:
                refusals[request] = decision.refusal.reason
                continue
            prefill, decode = decision.prefill, decision.decode
            tokens = prompts[request] + outputs[request]
            if tokens > self._room[prefill] or tokens > self._room[decode]:
                refusals[request] = "it does not fit on the instance that was chosen"
                continue
            state.dispatched(str(request), view, decision, now_s)
            for slot in {prefill, decode}:
                index.expect(slot, digests, now_s)
            world.submit(
                request,
                arrival_s=now_s,
                prompt_tokens=prompts[request],
                output_tokens=outputs[request],
                blocks=digests,
                prefill=prefill,
                decode=decode,
            )
        world.advance(np.inf)
        self._hear()
        return self._results(trace, world.outcomes(), refusals)

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
        self, trace: Trace, outcomes: NDArray[np.void], refusals: dict[int, str]
    ) -> Results:
        requests = outcomes["request"].astype(np.int64)
        columns = {}
        for name in OUTCOME.names or ():
            values = outcomes[name]
            floating = values.dtype == np.float64
            column = np.full(len(trace), np.nan if floating else -1, float if floating else int)
            column[requests] = values
            columns[name] = column
        del columns["request"]
        columns["arrival_s"] = trace.arrival_s
        slots = range(len(self._room))
        return Results(
            **columns,
            refusals=refusals,
            input_tokens=trace.input_tokens,
            output_tokens=trace.output_tokens,
            busy_s=np.array([self.world.busy_s(slot) for slot in slots]),
            steps=np.array([self.world.num_steps(slot) for slot in slots]),
            sent_bytes=np.array([self.world.sent_bytes(slot) for slot in slots]),
        )
