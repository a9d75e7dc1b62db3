"""Requests as chains of blocks: the traces that lie beside, and synthetic ones."""

import gzip
import json
import random
from pathlib import Path

from inlay.sim.studies.pool import Request

TRACES = Path(__file__).parents[1] / "traces"


def mooncake(name: str) -> list[Request]:
    """The whole trace, partial last blocks included."""
    with gzip.open(TRACES / f"mooncake_{name}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [Request(row["timestamp"] / 1000, row["hash_ids"]) for row in rows]


def zipf(seed: int, num_requests: int = 20_000, num_documents: int = 20_000) -> list[Request]:
    """Prompts of 1 to 16 blocks, drawn by a Zipf law of exponent 0.9, ten a second."""
    draw = random.Random(seed)
    weights = [(rank + 1) ** -0.9 for rank in range(num_documents)]
    lengths = [draw.randint(1, 16) for _ in range(num_documents)]
    chosen = draw.choices(range(num_documents), weights, k=num_requests)
    return [
        Request(i / 10, [16 * document + k for k in range(lengths[document])])
        for i, document in enumerate(chosen)
    ]


def scans(seed: int, num_requests: int = 12_000) -> list[Request]:
    """Half as `zipf` over 2,000 prompts, half prompts of 16 blocks that never come back."""
    hot = iter(zipf(seed, num_requests, 2_000))
    draw = random.Random(seed)
    fresh = 10**6
    requests = []
    for i in range(num_requests):
        if draw.random() < 0.5:
            requests.append(Request(i / 10, next(hot).blocks))
        else:
            fresh += 16
            requests.append(Request(i / 10, list(range(fresh, fresh + 16))))
    return requests


def conversations(seed: int, num_conversations: int = 1_500) -> list[Request]:
    """Conversations of 1 to 12 rounds, a minute of thought on average, 1 to 8 blocks a round, all
    behind one of four system prompts of 4 blocks."""
    draw = random.Random(seed)
    events: list[Request] = []
    ids = iter(range(10**9))
    systems = [[next(ids) for _ in range(4)] for _ in range(4)]
    for conversation in range(num_conversations):
        time_s = conversation * 1.0 + draw.random()
        blocks = list(draw.choice(systems))
        for _ in range(draw.randint(1, 12)):
            blocks += [next(ids) for _ in range(draw.randint(1, 8))]
            events.append(Request(time_s, list(blocks)))
            time_s += 5.0 + draw.expovariate(1 / 60)
    return sorted(events, key=lambda request: request.time_s)


def by_name(name: str, seed: int) -> list[Request]:
    """`conversation` and `synthetic` are the traces of Mooncake; the others are drawn by `seed`."""
    drawn = {"zipf": zipf, "scans": scans, "rounds": conversations}
    return drawn[name](seed) if name in drawn else mooncake(name)
