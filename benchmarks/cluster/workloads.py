"""Requests with the times at which they come: traces made small, and drawn ones.

A trace has a number for each block of 512 tokens. Here that block is one page of 16, and all
lengths are a 32nd. Tokens follow from the block's number, so prompts share what they shared there.
"""

import gzip
import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from benchmarks.store.workloads import TRACES, conversations

PAGE_TOKENS = 16
SCALE = 512 // PAGE_TOKENS
COMMON = 0.05
"""A block that so many of a trace's requests begin with belongs to no session."""

_TOKENS = range(300, 4000)  # ordinary ones of the random models
_OUTPUT_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Arrival:
    """A prompt, how many tokens are wanted, and when: seconds after the first."""

    time_s: float
    prompt: list[int]
    output_tokens: int


def trace(name: str, seed: int, count: int, *, min_turns: int, max_blocks: int) -> list[Arrival]:
    """About `count` requests of one of Mooncake's traces: whole sessions, drawn by chance.

    A session is all requests with the same first block, those apart that most requests have. Their
    arrivals keep their order and their bursts.

    Args:
        min_turns: sessions with fewer requests are left out.
        max_blocks: as are those with a longer prompt, in blocks.
    """
    with gzip.open(TRACES / f"mooncake_{name}.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    drawn = [
        session
        for session in _sessions(rows)
        if len(session) >= min_turns and max(len(row["hash_ids"]) for row in session) <= max_blocks
    ]
    random.Random(seed).shuffle(drawn)
    sizes = list(accumulate(len(session) for session in drawn))
    kept = [
        row for session, size in zip(drawn, sizes, strict=True) if size <= count for row in session
    ]
    kept.sort(key=lambda row: row["timestamp"])
    start = kept[0]["timestamp"]
    return [
        Arrival(
            (row["timestamp"] - start) / 1000,
            prompt_of(row["hash_ids"])[: max(1, row["input_length"] // SCALE)],
            max(2, row["output_length"] // SCALE),
        )
        for row in kept
    ]


def _sessions(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    count = Counter(block for row in rows for block in row["hash_ids"])
    found: dict[int, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        own = (block for block in row["hash_ids"] if count[block] < COMMON * len(rows))
        found.setdefault(next(own, -1 - number), []).append(row)
    return list(found.values())


def chat(seed: int, count: int) -> list[Arrival]:
    """Conversations of several rounds, each behind one of four system prompts."""
    requests = conversations(seed, count // 6)[:count]
    return [
        Arrival(request.time_s, prompt_of(request.blocks), _OUTPUT_TOKENS) for request in requests
    ]


def one_first_block(seed: int, count: int, *, shared_blocks: int) -> list[Arrival]:
    """All prompts begin with the same blocks, and share nothing else."""
    return _drawn(seed, count, range(shared_blocks))


def no_sharing(seed: int, count: int) -> list[Arrival]:
    """No two prompts share anything."""
    return _drawn(seed, count, ())


def _drawn(seed: int, count: int, shared: Iterable[int]) -> list[Arrival]:
    """Prompts of 4 to 40 own blocks, one a second on average."""
    draw = random.Random(seed)
    fresh = 1_000_000 * (seed + 1)
    times = accumulate(draw.expovariate(1.0) for _ in range(count))
    arrivals = []
    for time_s in times:
        own = range(fresh, fresh := fresh + draw.randint(4, 40))
        arrivals.append(Arrival(time_s, prompt_of([*shared, *own]), _OUTPUT_TOKENS))
    return arrivals


def by_name(name: str, seed: int, count: int, **options: int) -> list[Arrival]:
    """`conversation` and `synthetic` are the traces; the others are drawn."""
    make: dict[str, Callable[..., list[Arrival]]] = {
        "chat": chat,
        "one_first_block": one_first_block,
        "no_sharing": no_sharing,
    }
    return (
        make[name](seed, count, **options) if name in make else trace(name, seed, count, **options)
    )


def prompt_of(blocks: Iterable[int]) -> list[int]:
    """The tokens of blocks, a page each; always the same ones."""
    return [token for block in blocks for token in _tokens(block)]


def _tokens(block: int) -> list[int]:
    return random.Random(block).choices(_TOKENS, k=PAGE_TOKENS)


def random_prompt(draw: random.Random, num_tokens: int) -> list[int]:
    """A prompt that nobody has seen."""
    return draw.choices(_TOKENS, k=num_tokens)


def at_rate(arrivals: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The same order and bursts, with `rate` requests a second on average."""
    first_s, last_s = arrivals[0].time_s, arrivals[-1].time_s
    factor = (len(arrivals) - 1) / rate / (last_s - first_s)
    return [replace(arrival, time_s=(arrival.time_s - first_s) * factor) for arrival in arrivals]


def poisson(arrivals: Sequence[Arrival], rate: float, seed: int) -> list[Arrival]:
    """The same requests at times of a Poisson process."""
    draw = random.Random(seed)
    times = accumulate((draw.expovariate(rate) for _ in arrivals[1:]), initial=0.0)
    return [
        replace(arrival, time_s=time_s) for arrival, time_s in zip(arrivals, times, strict=True)
    ]


def block_names(prompt: Sequence[int]) -> Iterator[int]:
    """A name of each full page and all before it, for counting."""
    name = 0
    for end in range(PAGE_TOKENS, len(prompt) + 1, PAGE_TOKENS):
        name = hash((name, *prompt[end - PAGE_TOKENS : end]))
        yield name


def footprint_pages(arrivals: Iterable[Arrival]) -> int:
    """Different full pages of all prompts."""
    return len({name for arrival in arrivals for name in block_names(arrival.prompt)})


def reusable_tokens(arrivals: Iterable[Arrival]) -> int:
    """Prompt tokens in full pages that an earlier prompt began with, too: a bound of all hits."""
    seen: set[int] = set()
    tokens = 0
    for arrival in arrivals:
        names = list(block_names(arrival.prompt))
        tokens += PAGE_TOKENS * next(
            (k for k, name in enumerate(names) if name not in seen), len(names)
        )
        seen.update(names)
    return tokens
