"""kernels/gguf_types: a dense layer in each type of GGUF files, beside the roofline.

As in kernels/linear, so many copies of a layer take turns that none is in a cache.
"""

import math
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.kernels.linear import ALL_COPIES_BYTES, Call, compare, our_call
from benchmarks.triples import Comparison
from inlay import kernels
from inlay.core.weight_format import BLOCK_FORMATS
from tests.support.gguf_blocks import random_blocks


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison for each format and number of tokens."""
    for params in run.params("forward"):
        if params["isa"] == kernels.selected_isa():
            yield compare(run, params, *make_copies(run, params))


def make_copies(
    run: Run, params: Mapping[str, Any]
) -> tuple[list[Call], dict[str, list[Call]], int]:
    """Our calls on copies of a layer, no peers, and the bytes of one copy."""
    first = make_layer(run, params)
    copies = max(2, math.ceil(ALL_COPIES_BYTES / first.nbytes))
    layers = [first, *(make_layer(run, params) for _ in range(copies - 1))]
    return [our_call(layer) for layer in layers], {}, first.nbytes


def make_layer(run: Run, params: Mapping[str, Any]) -> kernels.LinearWeight:
    """A layer of random weights; of blocks 64 rows, again and again."""
    rng = np.random.default_rng(run.seeds[0])
    rows, columns = params["out_features"], params["in_features"]
    layer = kernels.LinearWeight(rows, columns, params["format"])
    some = min(rows, kernels.head_rows(1))
    if params["format"] in BLOCK_FORMATS:
        blocks = random_blocks(rng, params["format"], some, columns)
        for first in range(0, rows, some):
            layer.set_rows_blocks(first, blocks[: rows - first])
        return layer
    weight_NK = rng.standard_normal((some, columns), np.float32) * np.float32(0.02)
    for first in range(0, rows, some):
        layer.set_rows(first, weight_NK[: rows - first])
    return layer
