"""The simulator's scheduler and pages against those of the engine: the same chunks."""

from hypothesis import given
from hypothesis import strategies as st

from tests.support.scheduler_bench import PAGE as BENCH_PAGE
from tests.support.scheduler_bench import Bench
from tests.unit.sim.worlds import PAGE, instance, requests, run

assert PAGE == BENCH_PAGE


def steps_of(world):
    """Start and chunks of each step: (request, start, stop), in their order."""
    steps = {}
    for chunk in world.steps():
        step = steps.setdefault(int(chunk["step"]), (float(chunk["start_s"]), []))
        step[1].append(tuple(int(chunk[name]) for name in ("request", "start", "stop")))
    return list(steps.values())


@given(
    drawn=requests(),
    pages=st.integers(30, 48),
    max_running=st.sampled_from((1, 3, 8)),
    batch=st.sampled_from((8, 32)),
    chunk=st.sampled_from((3, 16, 64)),
)
def test_the_same_chunks_as_the_engine(drawn, pages, max_running, batch, chunk):
    limits = {"max_running": max_running, "max_batch_tokens": batch, "prefill_chunk": chunk}
    world = run([instance(num_pages=pages, **limits)], drawn)
    steps = steps_of(world)
    bench, chunks = Bench(pages=pages, **limits), []
    computed = bench.scheduler.computed
    bench.scheduler.computed = lambda one: (
        chunks.append((one.choice.request.order, one.start, one.stop)), computed(one)
    )  # fmt: skip
    waiting = list(enumerate(drawn))
    for start_s, expected in steps:
        while waiting and waiting[0][1].arrival_s <= start_s:
            number, request = waiting.pop(0)
            bench.request(request.tokens(number), output=request.output, priority=request.priority)
        chunks.clear()
        bench.step()
        assert chunks == expected
    assert not bench.scheduler.has_work and len(bench.finished) == len(drawn)
    preempted = sum(int(outcome["preemptions"]) for outcome in world.outcomes())
    assert preempted == bench.scheduler.preemptions


@given(
    drawn=requests(),
    max_running=st.sampled_from((1, 3, 8)),
    batch=st.sampled_from((8, 32)),
    chunk=st.sampled_from((3, 16, 64)),
)
def test_prompts_wait_for_outputs_where_these_are_first(drawn, max_running, batch, chunk):
    limits = {"max_running": max_running, "max_batch_tokens": batch, "prefill_chunk": chunk}
    world = run([instance(num_pages=2000, decode_first=True, **limits)], drawn)
    under_way = set()
    for _, chunks in steps_of(world):
        # A prompt's last token is computed as one of an output is.
        prompts = [one for one in chunks if one[1] < drawn[one[0]].prompt and one[2] - one[1] > 1]
        assert not (prompts and under_way)
        for number, _, stop in chunks:
            left = drawn[number].prompt + drawn[number].output - 1 - stop
            if left == 0:
                under_way.discard(number)
            elif left < drawn[number].output:
                under_way.add(number)
    assert len(world.outcomes()) == len(drawn)
