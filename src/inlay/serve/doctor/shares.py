"""What the kernels reach of this machine's bandwidth and peaks, measured with kernels themselves.

Each kernel is timed beside the probe that it is compared with, in turns, so that other load takes
from both. Between two timings of reading, the memory probe leaves nothing of a matrix in caches.
"""

import time
from collections.abc import Callable

import numpy as np

from inlay import kernels
from inlay.core.hardware import Efficiency
from inlay.core.weight_format import format_named

MEASURED = (
    "on this machine, matrices of 8192 x 2048 with 1 and 256 tokens, attention of 32 heads in "
    "groups of 8"
)

# A format and the operand whose peak it is compared with; others are taken as these.
_FORMATS = {
    "bfloat16": "bf16",
    "int8": "int8",
    "int8:g32": "int8",
    "uint4:g32": "int8",
    "int4:g32": "int8",
}
_ROWS, _COLUMNS, _TOKENS = 8192, 2048, 256
_TURNS = 5
_HEADS, _KV_HEADS, _HEAD_DIM, _PAGE_TOKENS = 32, 4, 128, 16
_CONTEXT = 16384  # 32 MiB of keys and values
_PROMPT = 512


def measure_shares() -> Efficiency:
    """Measure, in about 2 seconds and 700 MB.

    Raises:
        ArgumentError: there is no compiled extension.
    """
    probe = kernels.MemoryProbe()
    weight_NK = np.random.default_rng(0).standard_normal((_ROWS, _COLUMNS), np.float32)
    x_TK = np.ones((_TOKENS, _COLUMNS), np.float32)
    out_TN = np.empty((_TOKENS, _ROWS), np.float32)
    read, compute = {}, {}
    for name, operand in _FORMATS.items():
        weight = kernels.pack_linear(weight_NK, name)

        def multiply(tokens: int, weight: kernels.LinearWeight = weight) -> None:
            kernels.linear(x_TK[:tokens], weight, out_TN[:tokens])

        size_bytes = _ROWS * _COLUMNS * format_named(name).bytes_per_weight
        operations = 2.0 * _TOKENS * _ROWS * _COLUMNS
        read[name] = _share_read(probe, size_bytes, lambda: multiply(1))
        compute[name] = _share_computed(operand, operations, lambda: multiply(_TOKENS))
    decode, prompt = _attention(1, _CONTEXT), _attention(_PROMPT, _PROMPT)
    kv_bytes = _CONTEXT * 2 * _KV_HEADS * _HEAD_DIM * 2
    operations = _PROMPT * (_PROMPT + 1) / 2 * 4 * _HEADS * _HEAD_DIM
    return Efficiency(
        read=read | {"bf16": read["bfloat16"]},
        compute=compute | {"bf16": compute["bfloat16"]},
        attention_read=_share_read(probe, kv_bytes, decode),
        attention_compute=_share_computed("fp32", operations, prompt),
        measured=MEASURED,
    )


def _share_read(probe: kernels.MemoryProbe, size_bytes: float, call: Callable[[], None]) -> float:
    turns = [(probe.read_gbs() * 1e9, _seconds(call)) for _ in range(_TURNS)]
    return _share(turns, size_bytes)


def _share_computed(operand: str, operations: float, call: Callable[[], None]) -> float:
    turns = [(kernels.measure_peak(operand) * 1e12, _seconds(call)) for _ in range(_TURNS - 2)]
    return _share(turns, operations)


def _share(turns: list[tuple[float, float]], work: float) -> float:
    """Of the best of both sides: other programs take from some turns, seldom from all."""
    return work / min(seconds for _, seconds in turns) / max(rate for rate, _ in turns)


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _attention(new_tokens: int, context: int) -> Callable[[], None]:
    """A call of paged attention of one sequence."""
    geometry = kernels.KvGeometry(1, _PAGE_TOKENS, _KV_HEADS, _HEAD_DIM, "bfloat16")
    pages = context // _PAGE_TOKENS
    pool = np.zeros((pages, geometry.page_bytes), np.uint8)
    rng = np.random.default_rng(0)
    q_THD = rng.standard_normal((new_tokens, _HEADS, _HEAD_DIM), np.float32)
    out_THD = np.empty_like(q_THD)
    page_table_BP = rng.permutation(pages).astype(np.int32).reshape(1, -1)
    starts_B1 = np.array([0, new_tokens], np.int32)
    lengths_B = np.array([context], np.int32)

    def call() -> None:
        kernels.paged_attention(
            q_THD, pool, geometry, 0, page_table_BP, starts_B1, lengths_B, _HEAD_DIM**-0.5, out_THD
        )

    return call
