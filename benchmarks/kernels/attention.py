"""kernels/attention: paged attention beside the roofline and PyTorch's attention.

Calls go through enough layers that no keys are in a cache from the call before. The roofline is
the larger of reading the keys and values once and the fp32 multiply-adds: with many query heads
per key/value head even a decode computes longer than it reads. PyTorch gets contiguous keys and
values in the same dtype, queries in it too, and in a decode the heads of a group as queries of
one head, its fastest form; its threads spin for a moment after a call, so the next side waits.
"""

import math
import statistics
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.case import Run
from benchmarks.kernels import limits
from benchmarks.triples import Comparison, Limit
from inlay import kernels

PAGE_TOKENS = 16
ALL_LAYERS_BYTES = 400 * 10**6
CALLS = {"decode": 5, "prefill": 1}
IDLE_S = 0.005

Call = Callable[[int], object]  # of a layer


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per shape, dtype and phase; a side returns the milliseconds of one layer."""
    torch.set_num_threads(kernels.num_threads())
    torch.set_grad_enabled(False)
    torch.manual_seed(run.seeds[0])
    for params in run.params("forward"):
        if params["isa"] == kernels.selected_isa():
            yield compare(run, params)


def compare(run: Run, params: Mapping[str, Any]) -> Comparison:
    """The sides of one point."""
    sequences, context, new_tokens = (params[n] for n in ("sequences", "context", "new_tokens"))
    seen = sum(range(context - new_tokens + 1, context + 1))
    item_bytes = 4 if params["kv"] == "float32" else 2
    nbytes = 2 * sequences * context * params["kv_heads"] * params["head_dim"] * item_bytes
    operations = 4.0 * sequences * seen * params["heads"] * params["head_dim"]
    layers = max(2, math.ceil(ALL_LAYERS_BYTES / nbytes))
    calls = CALLS[params["phase"]]
    label = f"torch {torch.__version__}"
    return Comparison(
        name="forward",
        params=params,
        ours=side(our_call(run, params, layers), layers, calls),
        limit=Limit(
            name=limits.NAME,
            measure=lambda: limits.roofline_ms(nbytes, operations, "fp32"),
        ),
        peers={label: side(torch_call(params, layers), layers, calls, IDLE_S)},
        seeds=run.seeds,
    )


def side(call: Call, layers: int, calls: int, idle_s: float = 0.0) -> Callable[[], float]:
    """The median milliseconds of a few calls, each of the next layer."""
    done = 0

    def median_ms() -> float:
        nonlocal done
        taken = []
        for _ in range(calls):
            start = time.perf_counter()
            call(done % layers)
            taken.append((time.perf_counter() - start) * 1e3)
            done += 1
        time.sleep(idle_s)
        return statistics.median(taken)

    median_ms()
    return median_ms


def our_call(run: Run, params: Mapping[str, Any], layers: int) -> Call:
    """Ours, on pages in random order."""
    rng = np.random.default_rng(run.seeds[0])
    sequences, context, new_tokens = (params[n] for n in ("sequences", "context", "new_tokens"))
    geometry = kernels.KvGeometry(
        layers, PAGE_TOKENS, params["kv_heads"], params["head_dim"], params["kv"]
    )
    pages = sequences * math.ceil(context / PAGE_TOKENS)
    numbers = rng.standard_normal(
        (2, PAGE_TOKENS, params["kv_heads"], params["head_dim"]), np.float32
    )
    layer_of_page = numbers if params["kv"] == "float32" else numbers.view(np.uint16)[..., 1::2]
    pool = torch.empty((pages, geometry.page_bytes), dtype=torch.uint8).numpy()  # as a KvPool's
    pool.reshape(pages, layers, -1)[:] = (
        np.ascontiguousarray(layer_of_page).reshape(-1).view(np.uint8)
    )
    page_table_BP = rng.permutation(pages).astype(np.int32).reshape(sequences, -1)
    query_starts_B1 = np.arange(sequences + 1, dtype=np.int32) * new_tokens
    context_lens_B = np.full(sequences, context, np.int32)
    shape = (sequences * new_tokens, params["heads"], params["head_dim"])
    q_THD = rng.standard_normal(shape, np.float32)
    out_THD = np.empty_like(q_THD)

    def call(layer: int) -> None:
        kernels.paged_attention(
            q_THD, pool, geometry, layer, page_table_BP, query_starts_B1, context_lens_B,
            params["head_dim"] ** -0.5, out_THD,
        )  # fmt: skip

    return call


def torch_call(params: Mapping[str, Any], layers: int) -> Call:
    """PyTorch's, on contiguous keys and values of each layer."""
    sequences, context, new_tokens = (params[n] for n in ("sequences", "context", "new_tokens"))
    heads, kv_heads, head_dim = (params[n] for n in ("heads", "kv_heads", "head_dim"))
    dtype = getattr(torch, params["kv"])
    shape = (layers, 2, sequences, kv_heads, context, head_dim)
    kv = torch.randn(shape[2:]).to(dtype).expand(shape).contiguous()
    if params["phase"] == "decode":
        q = torch.randn(sequences, kv_heads, heads // kv_heads, head_dim).to(dtype)
        return lambda layer: F.scaled_dot_product_attention(q, kv[layer, 0], kv[layer, 1])
    q = torch.randn(sequences, heads, new_tokens, head_dim).to(dtype)
    if new_tokens == context:
        return lambda layer: F.scaled_dot_product_attention(
            q, kv[layer, 0], kv[layer, 1], is_causal=True, enable_gqa=True
        )
    ages = torch.arange(context - new_tokens, context)[:, None] - torch.arange(context)
    seen = ages >= 0
    return lambda layer: F.scaled_dot_product_attention(
        q, kv[layer, 0], kv[layer, 1], attn_mask=seen, enable_gqa=True
    )
