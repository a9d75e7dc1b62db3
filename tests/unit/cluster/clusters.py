"""States and requests for tests of policies."""

import numpy as np

from inlay.cluster.decision import Decision, RequestView
from inlay.cluster.state import ClusterState
from inlay.cluster.timing import Coefficients, TimingModel
from inlay.core.instance_messages import LoadReport

# Like a small model on one GPU: 10 ms a step, 8,000 prompt tokens a second.
SECONDS: Coefficients = np.array([0.01, 1.2e-4, 2e-9, 0.01, 2e-4, 1e-7])
PAGE_TOKENS = 16


def state_of(*roles: str, pages: int = 10_000, copies: bool = False) -> ClusterState:
    """Instances of one kind in the slots from 0 on."""
    state = ClusterState(PAGE_TOKENS, page_bytes=1 << 20, copies=copies)
    timing = TimingModel(SECONDS)
    for slot, role in enumerate(roles):
        state.join(slot, role, timing, pages_total=pages)  # type: ignore[arg-type]
    return state


def matches(*lengths: int) -> np.ndarray:
    return np.array(lengths, np.int32)


def request(num_tokens: int = 1000, **fields: object) -> RequestView:
    return RequestView(num_tokens=num_tokens, **fields)  # type: ignore[arg-type]


def sent(state: ClusterState, request_id: str, slot: int, now_s: float, **fields: float) -> None:
    """A request of 1,000 tokens went to a slot, with times that a test chose."""
    times = {"work_s": 1.0, "ttft_s": 1.0, "tbt_s": 0.02} | fields
    decision = Decision(policy="test", prefill=slot, decode=slot, **times)  # type: ignore[arg-type]
    state.dispatched(request_id, request(), decision, now_s)


def load(**fields: object) -> LoadReport:
    zero = dict.fromkeys(("waiting", "running", "receiving", "prefill_tokens", "context_tokens"), 0)
    pages = {"pages_total": 10_000, "pages_free": 10_000, "pages_cached": 0}
    return LoadReport(run_id="1", **(zero | pages | fields))  # type: ignore[arg-type]
