"""transfer/kv_shaped: the pages of one long prompt in one call, beside large blocks on that path.

A prompt of 32 pages has, in each of 61 layers, 32 pieces of 128 KiB and 32 of 16 KiB: latent
vectors and keys' rotary parts of a DeepSeek-V3 cache, or keys and values apart. They lie on random
pages of both pools, others for every call. The limit moves as many bytes in blocks of 16 MiB, one
after the other, between the same memories.
"""

import sys
import time
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.transfer.calls import Walk
from benchmarks.transfer.pair import DEADLINE_S, MEMORIES, Pair, transport_problem
from benchmarks.triples import Comparison, Limit
from inlay.transfer import Op, Ranges

LARGE_BYTES = 16 << 20
PLACEMENTS = 8  # drawn beforehand


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per transport."""
    for params in run.params("read"):
        if problem := transport_problem(params["transport"]):
            print(f"{params['transport']} left out: {problem}", file=sys.stderr)
            continue
        with Pair(params["transport"], pool_bytes(run.workload)) as pair:
            for memory in MEMORIES:
                pair.check(memory)
            yield compare(run, params, pair)


def pool_bytes(shape: Mapping[str, Any]) -> int:
    """Bytes of a pool, which holds more pages than a prompt has."""
    return int(shape["layers"] * shape["pool_pages"] * sum(shape["piece_bytes"]))


def offsets(shape: Mapping[str, Any], random: np.random.Generator) -> np.ndarray:
    """Where the pieces of a prompt lie in a pool, layer by layer and kind by kind."""
    found, start = [], 0
    pages = random.permutation(shape["pool_pages"])[: shape["pages"]]
    for _ in range(shape["layers"]):
        for size in shape["piece_bytes"]:
            found.append(start + pages * size)
            start += shape["pool_pages"] * size
    return np.concatenate(found).astype(np.int64)


def lengths(shape: Mapping[str, Any]) -> np.ndarray:
    """The pieces' bytes, in the order of `offsets`."""
    return np.tile(np.repeat(shape["piece_bytes"], shape["pages"]), shape["layers"]).astype(
        np.int64
    )


def compare(run: Run, params: Mapping[str, Any], pair: Pair) -> Comparison:
    """Ours, and the path's rate for large blocks."""
    shape, memory = run.workload, params["memory"]
    random = np.random.default_rng(run.seeds[0])
    sizes = lengths(shape)
    assert len(sizes) == params["ranges"]
    total = int(sizes.sum())
    drawn = [(offsets(shape, random), offsets(shape, random)) for _ in range(PLACEMENTS)]
    local, remote, walk = pair.local[memory], pair.remote[memory], Walk()

    def prompt() -> float:
        here, there = drawn[0]
        drawn.append(drawn.pop(0))
        start = time.perf_counter()
        ranges = Ranges(Op.READ, local, remote, here, there, sizes)
        pair.engine.submit([ranges], deadline_s=DEADLINE_S).wait()
        return total / (time.perf_counter() - start) / 1e9

    def large_blocks() -> float:
        calls = -(-total // LARGE_BYTES)
        start = time.perf_counter()
        for _ in range(calls):
            pair.move(Op.READ, memory, walk.offset(0, 1, LARGE_BYTES), LARGE_BYTES)
        return calls * LARGE_BYTES / (time.perf_counter() - start) / 1e9

    return Comparison(
        name="read",
        params=params,
        ours=prompt,
        limit=Limit(name="blocks of 16 MiB on the same path", measure=large_blocks),
        seeds=run.seeds,
    )
