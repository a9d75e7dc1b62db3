"""What one cache of all prompts holds, by its size and by what goes first.

Hits are whole blocks of a request from its first to the first one that is missing, as a part of all
whole blocks of the trace, cold start included.

Source: Mooncake (FAST'25), figure 9, one LRU; 3 M tokens are about 1 TB.
"""

from inlay.sim.studies import pool
from inlay.sim.studies.found import Found
from inlay.sim.trace import Trace

# Plateaus; and 3 M tokens as a part of them: 41 %, and 46 to 48 %.
PLATEAU = {"conversation": 0.40, "synthetic": 0.66}
PAPER = {("conversation", 3_000_000): 0.41 * 0.40, ("synthetic", 3_000_000): 0.47 * 0.66}
NEARLY_ALL = 50_000_000


def measure(name: str, trace: Trace, *, capacity_tokens: int, policy: str) -> list[Found]:
    """`hit_ratio` beside that of one who knows the future (Belady).

    Args:
        name: of the trace, by which the paper's figure is found.
        policy: of the store's, or `lfu`.
    """
    requests = pool.whole_blocks(trace)
    capacity = capacity_tokens // trace.block_tokens
    published = None
    if policy == "lru":
        published = PAPER.get((name, capacity_tokens))
        if capacity_tokens >= NEARLY_ALL:
            published = PLATEAU.get(name)
    return [
        Found(
            name="hit_ratio",
            value=pool.hit_ratio(requests, policy, capacity),
            published=published,
            limit=("knowing the future", pool.farthest_next_use(requests, capacity)),
        )
    ]
