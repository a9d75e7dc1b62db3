"""Any arguments at all: a call raises, or its result is the reference's.

`./tools/check sanitizers` runs these again, with new examples every time and the extension built
with the address and undefined-behaviour sanitizers.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import event, given

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.kernels import reference
from tests.native.cases import Paged, floats, pairs, routing

SIZES = st.one_of(st.integers(1, 9), st.sampled_from([16, 31, 33, 64, 65, 100, 130]))
TOKENS = st.one_of(st.integers(0, 3), st.sampled_from([7, 8, 15, 17, 33, 97]))
FORMATS = st.sampled_from(kernels.FORMATS)
SEEDS = st.integers(0, 2**32 - 1)


def misaligned(array: np.ndarray) -> np.ndarray:
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    memory[:] = np.frombuffer(array.tobytes(), np.uint8)
    return memory.view(array.dtype).reshape(array.shape)


def apart(array: np.ndarray) -> np.ndarray:
    wide = np.zeros((*array.shape[:-1], 3 * array.shape[-1] + 5), array.dtype)
    view = wide[..., 2 : 2 + array.shape[-1]]
    view[...] = array
    return view


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def piled_up(array: np.ndarray) -> np.ndarray:
    strides = (0, *array.strides[1:])
    return np.lib.stride_tricks.as_strided(array.copy(), array.shape, strides)


DAMAGE: dict[str, Callable[[np.ndarray], Any]] = {
    "rows apart": apart,
    "rows backwards": lambda a: a[::-1],
    "columns backwards": lambda a: a[..., ::-1],
    "columns apart": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "columns first": np.asfortranarray,
    "one row for all": piled_up,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "misaligned": misaligned,
    "read only": read_only,
    "float64": lambda a: a.astype(np.float64),
    "float16": lambda a: np.clip(a, -100, 100).astype(np.float16),
    "int64": lambda a: np.clip(np.nan_to_num(a), 0, 100).astype(np.int64),
    "uint8": lambda a: np.clip(np.nan_to_num(a), 0, 100).astype(np.uint8),
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "one row more": lambda a: np.concatenate([a, a[:1], np.zeros_like(a[:1])]),
    "one row less": lambda a: a[1:],
    "one column less": lambda a: a[..., 1:].copy(),
    "no rows": lambda a: a[:0],
    "no columns": lambda a: a[..., :0],
    "one dimension more": lambda a: a[None],
    "one dimension less": lambda a: a.reshape(-1),
    "list": lambda a: a.tolist(),
    "none": lambda a: None,
    "bytes": lambda a: a.tobytes(),
}


def clean(value: Any) -> Any:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    return np.array(value, order="C") if isinstance(value, np.ndarray) else value


def error(result: np.ndarray, expected: np.ndarray) -> float:
    both = np.isfinite(expected)
    assert np.array_equal(np.isfinite(result), both)
    values = expected[both].astype(np.float64)
    return float(np.linalg.norm(result[both] - values)) / max(float(np.linalg.norm(values)), 1e-6)


def check(
    data: st.DataObject,
    call: Callable[..., None],
    arguments: dict[str, Any],
    out: str,
    bound: float,
    plain: dict[str, Any] | None = None,
    keep: str | None = None,
) -> None:
    """Damage at most one array, call the kernel, and the reference if the kernel takes it.

    `call(module, **arguments)` fills `arguments[out]`; `plain` replaces arguments of the reference;
    `keep` is not damaged, it is there for the result alone.
    """
    arrays = [
        name for name, value in arguments.items() if isinstance(value, np.ndarray) and name != keep
    ]
    name = data.draw(st.sampled_from([None, *arrays]), "damaged")
    if name is not None:
        kind = data.draw(st.sampled_from(sorted(DAMAGE)), "damage")
        if arguments[name].ndim and arguments[name].size:
            arguments[name] = DAMAGE[kind](arguments[name])
    elif keep is None and arguments[out].size and data.draw(st.integers(0, 9)) == 0:
        # The output where an input lies.
        memory = np.zeros(sum(arguments[n].nbytes for n in arrays) + 64, np.uint8)
        arguments[out] = (
            memory[: arguments[out].nbytes].view(np.float32).reshape(arguments[out].shape)
        )
        other = next(n for n in arrays if n != out)
        value = arguments[other]
        arguments[other] = memory[: value.nbytes].view(value.dtype).reshape(value.shape)
    expected = {key: clean(value) for key, value in arguments.items()} | (plain or {})
    try:
        call(kernels, **arguments)
    except (ArgumentError, TypeError) as refusal:
        event(f"refused: {type(refusal).__name__}")
        return
    event("worked")
    call(reference, **expected)
    if expected[out].size:
        assert error(clean(arguments[out]), expected[out]) <= bound


def bound(format: str) -> float:
    # An activation on the edge between two steps may fall to either.
    return 1e-4 if format in ("float32", "bfloat16") else 0.02


@given(st.data(), TOKENS, SIZES, SIZES, FORMATS, SEEDS)
def test_linear(data: st.DataObject, t: int, k: int, n: int, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = floats(rng, n, k)
    packed, plain = kernels.pack_linear(w, format), reference.pack_linear(w, format)

    def call(module: Any, weight: Any, x_TK: Any, out_TN: Any, bias_N: Any) -> None:
        module.linear(x_TK, weight, out_TN, bias_N=bias_N, accumulate=True)

    arguments = {"x_TK": floats(rng, t, k), "out_TN": floats(rng, t, n), "bias_N": floats(rng, n)}
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(
            data, call, {**arguments, "weight": packed}, "out_TN", bound(format), {"weight": plain}
        )


@given(st.data(), TOKENS, SIZES, SIZES, st.integers(1, 6), st.integers(0, 4), FORMATS, SEEDS)
def test_moe(
    data: st.DataObject,
    t: int,
    hidden: int,
    width: int,
    experts: int,
    top_k: int,
    format: str,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    packed, plain = pairs(rng, experts, hidden, width, format, bias=bool(seed % 2))
    ids, weights = routing(rng, t, experts, min(top_k, experts))
    if ids.size:
        ids.flat[0] = data.draw(st.sampled_from([0, -1, experts, 2**31 - 1, -(2**31)]), "an id")
        weights.flat[-1] = data.draw(st.sampled_from([0.5, np.nan, np.inf, 0.0]), "a weight")
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=experts, max_size=experts)))

    def call(module: Any, weight: Any, x: Any, ids: Any, weights: Any, mask: Any, out: Any) -> None:
        if module is kernels:
            kernels.moe(x, weight, ids, weights, out, expert_mask_E=mask)
        else:
            reference.moe(x, weight, ids, weights, out, False, mask)

    arguments = {
        "x": floats(rng, t, hidden),
        "ids": ids,
        "weights": weights,
        "mask": mask,
        "out": np.zeros((t, hidden), np.float32),
    }
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(
            data, call, {**arguments, "weight": packed}, "out", 2 * bound(format), {"weight": plain}
        )


@given(st.data(), SIZES, SIZES, FORMATS, SEEDS)
def test_set_rows(data: st.DataObject, n: int, k: int, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first = data.draw(st.one_of(st.just(0), st.integers(-2, n + 2)), "first")

    def call(module: Any, rows: Any, out: Any) -> None:
        weight = module.LinearWeight(n, k, format)
        weight.set_rows(first, rows)
        out[...] = weight.dequantize()

    rows = floats(rng, data.draw(st.integers(0, n), "rows"), k)
    check(data, call, {"rows": rows, "out": np.zeros((n, k), np.float32)}, "out", 1e-6, keep="out")


@given(st.data(), SIZES, SIZES, FORMATS, SEEDS)
def test_quantize(data: st.DataObject, n: int, k: int, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def call(module: Any, w: Any, out: Any) -> None:
        q, scales = module.quantize(w, format)
        weight = module.LinearWeight(len(q), w.shape[1], format)
        weight.set_rows_quantized(0, q, scales)
        part = weight.dequantize()[:n, :k]
        out[: part.shape[0], : part.shape[1]] = part

    w = floats(rng, n, k)
    w.flat[0] = data.draw(st.sampled_from([0.0, 1.0, 1e30, np.nan, -np.inf, 1e-40]), "a value")
    check(data, call, {"w": w, "out": np.zeros((n, k), np.float32)}, "out", 1e-6, keep="out")


@given(st.data(), TOKENS, SIZES, SEEDS)
def test_rows(data: st.DataObject, t: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def norm(module: Any, x: Any, weight: Any, out: Any) -> None:
        module.rms_norm(x, weight, 1e-6, out)

    def silu(module: Any, x: Any, out: Any) -> None:
        module.silu_mul(x, out)

    out = np.zeros((t, m), np.float32)
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        if data.draw(st.booleans()):
            arguments = {"x": floats(rng, t, m), "weight": floats(rng, m), "out": out}
            check(data, norm, arguments, "out", 1e-5)
        else:
            check(data, silu, {"x": floats(rng, t, 2 * m), "out": out}, "out", 1e-5)


@given(st.data(), TOKENS, SIZES, st.integers(0, 9), SEEDS)
def test_router(data: st.DataObject, t: int, experts: int, top_k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)

    def call(module: Any, logits: Any, ids: Any, out: Any) -> None:
        module.router_topk(logits, top_k, True, ids, out)

    arguments = {
        "logits": floats(rng, t, experts),
        "ids": np.zeros((t, top_k), np.int32),
        "out": np.zeros((t, top_k), np.float32),
    }
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(data, call, arguments, "out", 1e-5)


@given(
    st.data(),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 70)), max_size=3),
    st.sampled_from([2, 8, 34, 64]),
    st.sampled_from(["float32", "bfloat16"]),
    SEEDS,
)
def test_attention(
    data: st.DataObject, sequences: list[tuple[int, int]], d: int, dtype: str, seed: int
) -> None:
    queries = [min(pair) for pair in sequences]
    contexts = [max(pair) for pair in sequences]
    paged = Paged(np.random.default_rng(seed), queries, contexts, head_dim=d, dtype=dtype)
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    window = data.draw(st.sampled_from([0, 1, 20]), "window")
    table = paged.page_table.copy()
    if table.size:
        table.flat[0] = data.draw(st.sampled_from([table.flat[0], -1, len(paged.pool)]), "a page")

    def call(
        module: Any, geometry: Any, q: Any, pool: Any, table: Any, starts: Any, lens: Any, out: Any
    ) -> None:
        arguments = (q, pool, geometry, 1, table, starts, lens, paged.scale, out)
        module.paged_attention(*arguments, sliding_window=window)

    arguments = {
        "geometry": paged.geometry,
        "q": np.ascontiguousarray(paged.q),
        "pool": paged.pool,
        "table": table,
        "starts": starts,
        "lens": np.array(contexts, np.int32),
        "out": np.full(paged.q.shape, 0, np.float32),
    }
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(data, call, arguments, "out", 1e-4, {"geometry": paged.plain_geometry})
