"""The index and the requests of cluster/dispatch_cost are what its case says."""

from benchmarks.case import Run, load_case
from benchmarks.cluster.dispatch_cost import Filled, deciding


def test_half_of_the_requests_find_a_prompt() -> None:
    run = Run(case=load_case("cluster/dispatch_cost"), quick=True)
    filled = Filled(run, instances=3, blocks=3000)
    work = run.workload
    decide = deciding(filled, {"instances": 3, "blocks": 3000, "policy": "kv_centric"})
    for i, request in enumerate(filled.requests[:20]):
        lengths = sorted(filled.index.match(request.digests).tolist())
        longest = work["reused_blocks"] if i % 2 else work["shared_blocks"]
        assert lengths == [work["shared_blocks"], work["shared_blocks"], longest]
        decide(request)
