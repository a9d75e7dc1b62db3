"""Any arguments at all: a call raises, or its result is the reference's.

`./tools/check sanitizers` runs these again, beside `test_bad_input`, `test_pending` and
`test_hand_over`, with new examples every time and the extension built with the address and
undefined-behaviour sanitizers.
"""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import event, given

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.core.weight_format import format_named
from inlay.kernels import _backend, reference
from tests.native.cases import Paged, floats, pairs, routing
from tests.support.exported import Exported

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


def tensor(array: np.ndarray) -> Any:
    return torch.from_numpy(np.array(array)) if array.dtype.str[0] != ">" else None


def misaligned_tensor(array: np.ndarray) -> Any:
    dtype, memory = tensor(array).dtype, bytearray(array.nbytes + 1)
    memory[1:] = array.tobytes()
    return torch.frombuffer(memory, dtype=dtype, offset=1).reshape(array.shape)


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
    "no item bytes": lambda a: np.zeros(a.shape, "V0"),
    "by DLPack": lambda a: Exported(np.array(a)),
    "read only by DLPack": lambda a: Exported(read_only(a)),
    "tensor": tensor,
    "tensor backwards": lambda a: tensor(a.swapaxes(0, -1)).transpose(0, -1),
    "tensor misaligned": misaligned_tensor,
    "tensor for all": lambda a: tensor(a[:1]).expand(a.shape),
}


def clean(value: Any) -> Any:
    if isinstance(value, bytes):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, Exported):
        value = value.array
    if isinstance(value, torch.Tensor):
        value = value.numpy()
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
        # The output where an input lies, or part of it.
        other = data.draw(st.sampled_from([n for n in arrays if n != out]), "below the output")
        shift = data.draw(st.sampled_from([0, 8, 64]), "shift")
        memory = np.zeros(sum(arguments[n].nbytes for n in (out, other)) + shift, np.uint8)
        for array, begin in ((other, 0), (out, shift)):
            value = arguments[array]
            place = memory[begin : begin + value.nbytes].view(value.dtype).reshape(value.shape)
            place[...] = value
            arguments[array] = place
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
    return 0.02 if format_named(format).is_integer else 1e-4


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
    if hidden * width <= 100 and data.draw(st.booleans(), "two chunks"):
        t = 1030
    packed, plain = pairs(rng, experts, hidden, width, format, bias=bool(seed % 2))
    ids, weights = routing(rng, t, experts, min(top_k, experts))
    if ids.size:
        ids.flat[0] = data.draw(st.sampled_from([0, -1, experts, 2**31 - 1, -(2**31)]), "an id")
        weights.flat[-1] = data.draw(st.sampled_from([0.5, np.nan, np.inf, 0.0]), "a weight")
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=experts, max_size=experts)))
    shared = pairs(rng, 1, hidden, data.draw(SIZES), format) if data.draw(st.booleans()) else None
    activation = data.draw(st.sampled_from([(1.0, np.inf, 0.0), (1.7, 7.0, 1.0)]), "activation")
    submitted = data.draw(st.booleans(), "submitted")

    def call(module: Any, weight: Any, x: Any, ids: Any, weights: Any, mask: Any, out: Any) -> None:
        if module is reference:
            both = None if shared is None else shared[1]
            reference.moe(x, weight, ids, weights, out, False, mask, *activation, both)
            return
        options: dict[str, Any] = {
            "expert_mask_E": mask,
            "activation": kernels.Activation(*activation),
            "shared": None if shared is None else shared[0],
        }
        if not submitted:
            kernels.moe(x, weight, ids, weights, out, **options)
            return
        pending = kernels.submit_moe(x, weight, ids, weights, out, **options)
        if isinstance(ids, np.ndarray) and ids.flags.writeable:
            ids[...] = 2**30  # too early
        pending.wait()

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


@given(st.data(), TOKENS, SIZES, SIZES, st.integers(1, 4), st.integers(0, 3), FORMATS, SEEDS)
def test_training(
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
    rank = data.draw(st.sampled_from([1, 2, 3, 8, 13]), "rank")
    packed, plain = pairs(rng, experts, hidden, width, format, bias=bool(seed % 2))
    ids, weights = routing(rng, t, experts, min(top_k, experts))
    if ids.size:
        ids.flat[0] = data.draw(st.sampled_from([0, -1, experts, 2**31 - 1, -(2**31)]), "an id")
        weights.flat[-1] = data.draw(st.sampled_from([0.5, np.nan, np.inf, 0.0]), "a weight")
    shapes = ((rank, hidden), (width, rank), (rank, hidden), (width, rank))
    shapes += ((rank, width), (hidden, rank))
    dropout = data.draw(st.sampled_from([0.0, 0.2]), "dropout")
    recompute = data.draw(st.booleans(), "recompute")
    wanted = data.draw(st.sampled_from(["out", "grad_x", "grad_routing", "grad_3"]), "compared")
    names = ("gate_a", "gate_b", "up_a", "up_b", "down_a", "down_b")

    def call(module: Any, weight: Any, **given: Any) -> None:
        ops = reference if module is reference else _backend.ops
        lora = [given[name] for name in names]
        saved = ops.moe_saving(
            given["x"], weight, given["ids"], given["weights"], given["out"], lora, 1.5, dropout,
            seed, 1.0, np.inf, 0.0, recompute,
        )  # fmt: skip
        grads = [given[f"grad_{i}"] for i in range(6)]
        ops.moe_backward(saved, given["grad_out"], given["grad_x"], given["grad_routing"], grads)

    def matrices() -> list[np.ndarray]:
        return [floats(rng, experts, *shape) / shape[1] ** 0.5 for shape in shapes]

    arguments = {
        "x": floats(rng, t, hidden),
        "ids": ids,
        "weights": weights,
        "out": floats(rng, t, hidden),
        "grad_out": floats(rng, t, hidden),
        "grad_x": floats(rng, t, hidden),
        "grad_routing": np.zeros_like(weights),
        **dict(zip(names, matrices(), strict=True)),
        **{f"grad_{i}": matrix for i, matrix in enumerate(matrices())},
    }
    tolerance = 1e-4 if format == "float32" else 0.05
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(data, call, {**arguments, "weight": packed}, wanted, tolerance, {"weight": plain})


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
        weight = module.LinearWeight(len(q), clean(w).shape[1], format)
        weight.set_rows_quantized(0, q, scales)
        part = weight.dequantize()[:n, :k]
        out[: part.shape[0], : part.shape[1]] = part

    w = floats(rng, n, k)
    w.flat[0] = data.draw(st.sampled_from([0.0, 1.0, 1e30, np.nan, -np.inf, 1e-40]), "a value")
    check(data, call, {"w": w, "out": np.zeros((n, k), np.float32)}, "out", 1e-6, keep="out")


@given(
    st.data(),
    SIZES,
    SIZES,
    st.sampled_from(["int8", "int8:g32", "int4:g64", "fp8:g128", "mxfp4"]),
    SEEDS,
)
def test_set_rows_quantized(data: st.DataObject, n: int, k: int, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = data.draw(st.integers(0, n), "rows")
    first = data.draw(st.one_of(st.just(0), st.integers(-2, n + 2)), "first")
    groups = format_named(format).groups(k)

    def call(module: Any, q: Any, scales: Any, out: Any) -> None:
        weight = module.LinearWeight(n, k, format)
        weight.set_rows_quantized(first, q, scales)
        out[...] = weight.dequantize()

    most = data.draw(st.sampled_from([8, 9, 128]), "above the largest integer")
    q = rng.integers(-most, most, (rows, k)).clip(-128, 127).astype(np.int8)
    scales = floats(rng, rows, groups)
    if format == "mxfp4":
        q = rng.integers(0, 256, (rows, -(-k // 2))).astype(np.uint8)
        scales = rng.integers(0, 250, scales.shape).astype(np.uint8)
        if scales.size:
            scales.flat[-1] = data.draw(st.sampled_from([0, 1, 252, 253, 255]), "a scale")
    elif format == "fp8:g128":
        q = q.view(np.uint8)
    if scales.size and scales.dtype == np.float32:
        scales.flat[-1] = data.draw(st.sampled_from([1.0, np.nan, np.inf, 1e-40]), "a scale")
    arguments = {"q": q, "scales": scales, "out": np.zeros((n, k), np.float32)}
    check(data, call, arguments, "out", 1e-6, keep="out")


@given(st.data(), SIZES, SIZES, FORMATS, st.booleans(), SEEDS)
def test_experts(
    data: st.DataObject, hidden: int, width: int, format: str, bias: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    expert = data.draw(st.sampled_from([0, 1, 1, 1, 2, -1, 2**31]), "expert")

    def call(module: Any, out: Any, **arguments: Any) -> None:
        experts = module.ExpertWeights(2, hidden, width, format, bias)
        experts.set(expert, **arguments)
        experts.panels(1)
        parts = [*experts.dequantize(1), *([experts.biases()[1]] if bias else [])]
        out[...] = np.concatenate([part.reshape(-1) for part in parts])

    sizes = {"gate_FM": (width, hidden), "up_FM": (width, hidden), "down_MF": (hidden, width)}
    if data.draw(st.booleans(), "biases"):
        sizes |= {"gate_bias_F": (width,), "up_bias_F": (width,), "down_bias_M": (hidden,)}
    arguments = {name: floats(rng, *size) for name, size in sizes.items()}
    total = 3 * hidden * width + (2 * width + hidden if bias else 0)
    out = np.zeros(total, np.float32)
    check(data, call, {**arguments, "out": out}, "out", 1e-6, keep="out")


def in_file(array: Any) -> np.ndarray:
    """Bytes that begin at a multiple of 64, as in a packed file."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    memory = np.zeros(flat.size + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][: flat.size]
    memory[:] = flat
    return memory


def ops(module: Any) -> Any:
    """Where the functions are that only `PackedFile` calls."""
    return _backend.ops if module is kernels else module


@given(st.data(), SIZES, SIZES, FORMATS, SEEDS)
def test_mapped(data: st.DataObject, n: int, k: int, format: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    more = data.draw(st.sampled_from([0, 0, 0, 1, 64]), "more rows than there are")
    if data.draw(st.booleans(), "linear"):
        source = kernels.pack_linear(floats(rng, n, k), format)
        arguments = {"panels": in_file(source.panels()), "out": np.zeros((n, k), np.float32)}

        def call(module: Any, panels: Any, out: Any) -> None:
            out[...] = ops(module).map_linear(n + more, k, format, panels).dequantize()[:n]

    else:
        experts = pairs(rng, 2, n, k, format, bias=True)[0]
        first, second = experts.panels(0), experts.panels(1)
        arguments = {
            "gate_up": in_file([first[0], second[0]]),
            "down": in_file([first[1], second[1]]),
            "biases": in_file(experts.biases()),
            "out": np.zeros((n, k), np.float32),
        }

        def call(module: Any, out: Any, **memory: Any) -> None:
            experts = ops(module).map_experts(2 + more, n, k, format, **memory)
            out[...] = experts.dequantize(1)[2]

    check(data, call, arguments, "out", 1e-6, keep="out")


# Products of powers of two are those that wrap to nothing.
SIZES_OF_ALL_KINDS = st.one_of(
    st.integers(0, 31).map(lambda exponent: 1 << exponent),
    st.sampled_from([-1, 0, 3, 100, 2**31 - 1, 2**62, 2**63 - 1]),
)


@given(SIZES_OF_ALL_KINDS, SIZES_OF_ALL_KINDS, SIZES_OF_ALL_KINDS, SIZES_OF_ALL_KINDS, FORMATS)
def test_sizes(a: int, b: int, c: int, d: int, format: str) -> None:
    """What can be made has room for its weights."""
    bits = format_named(format).bits
    for make, weights in (
        (lambda: kernels.LinearWeight(a, b, format).nbytes, a * b),
        (lambda: kernels.ExpertWeights(a, b, c, format, True).nbytes, 3 * a * b * c),
        (lambda: kernels.KvGeometry(a, b, c, d, "float32").page_bytes, 64 * a * b * c * d // bits),
    ):
        try:
            nbytes = make()
        except (ArgumentError, MemoryError):
            continue
        assert nbytes >= weights * bits // 8


@given(st.data(), TOKENS, SIZES, st.integers(1, 5), st.integers(0, 6), SEEDS)
def test_hand_over(
    data: st.DataObject, t: int, hidden: int, top_k: int, layers: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    both = [pairs(rng, 6, hidden, 9, "float32") for _ in range(layers)]
    ids, weights = zip(*(routing(rng, t, 6, top_k) for _ in range(2)), strict=True)
    rows = data.draw(st.integers(-1, t + 1), "rows")

    def call(module: Any, experts: Any, **arguments: Any) -> None:
        hand_over = module.HandOver(
            experts, arguments["x"], arguments["ids"], arguments["weights"], arguments["out"],
            arguments["words"],
        )  # fmt: skip
        pending = hand_over.begin(
            rows, on_host_LE=arguments["on_host"], deferred_T=arguments["deferred"],
            counted_T=arguments["counted"],
        )  # fmt: skip
        for layer in range(layers):
            hand_over.ask(layer)
            hand_over.wait_answer(layer, 60)
        pending.wait(60)

    arguments = {
        "experts": [packed for packed, _ in both],
        "x": floats(rng, 2, t, hidden),
        "ids": np.stack(ids),
        "weights": np.stack(weights),
        "out": np.zeros((2, t, hidden), np.float32),
        "words": np.zeros((layers, 2), np.uint32),
        "on_host": rng.random((layers, 6)) < 0.7,
        "deferred": rng.integers(0, 4, max(rows, 0)).astype(np.int32),
        "counted": rng.random(max(rows, 0)) < 0.5,
    }
    if arguments["ids"].size:
        bad = data.draw(st.sampled_from([0, 0, 0, -1, -(2**31), 6, 2**31 - 1]), "an id")
        arguments["ids"].flat[-1] = bad
        arguments["weights"].flat[0] = data.draw(st.sampled_from([0.5, np.nan]), "a weight")
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(data, call, arguments, "out", 1e-4, {"experts": [plain for _, plain in both]})


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

    groups = {
        "groups": data.draw(st.integers(0, 4), "groups"),
        "groups_per_token": data.draw(st.integers(0, 4), "groups per token"),
    }

    def call(module: Any, logits: Any, correction: Any, ids: Any, out: Any) -> None:
        module.router_topk(logits, top_k, True, ids, out, correction_E=correction, **groups)

    correction = floats(rng, data.draw(st.sampled_from([experts, experts, 3]), "its length"))
    arguments = {
        "logits": floats(rng, t, experts),
        "correction": data.draw(st.sampled_from([None, correction]), "correction"),
        "ids": np.zeros((t, top_k), np.int32),
        "out": np.zeros((t, top_k), np.float32),
    }
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(data, call, arguments, "out", 1e-5)


@given(
    st.data(),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 70)), max_size=3),
    st.sampled_from([2, 8, 34, 64]),
    st.sampled_from([{}, {"kv_heads": 1, "group": 5, "value_dim": 2}]),
    st.sampled_from(["float32", "bfloat16"]),
    SEEDS,
)
def test_attention(
    data: st.DataObject,
    sequences: list[tuple[int, int]],
    d: int,
    heads: dict[str, int],
    dtype: str,
    seed: int,
) -> None:
    queries = [min(pair) for pair in sequences]
    contexts = [max(pair) for pair in sequences]
    paged = Paged(np.random.default_rng(seed), queries, contexts, head_dim=d, dtype=dtype, **heads)
    starts = np.concatenate([[0], np.cumsum(queries)]).astype(np.int32)
    window = data.draw(st.sampled_from([0, 1, 20]), "window")
    table = paged.page_table.copy()
    sinks = data.draw(st.sampled_from([None, 0.0, 3.0, -np.inf, np.inf, np.nan]), "sinks")
    if table.size:
        table.flat[0] = data.draw(st.sampled_from([table.flat[0], -1, len(paged.pool)]), "a page")

    def call(
        module: Any,
        geometry: Any,
        q: Any,
        pool: Any,
        table: Any,
        starts: Any,
        lens: Any,
        sinks: Any,
        out: Any,
    ) -> None:
        arguments = (q, pool, geometry, 1, table, starts, lens, paged.scale, out)
        module.paged_attention(*arguments, sliding_window=window, sinks_H=sinks)

    arguments = {
        "geometry": paged.geometry,
        "q": np.ascontiguousarray(paged.q),
        "pool": paged.pool,
        "table": table,
        "starts": starts,
        "lens": np.array(contexts, np.int32),
        "sinks": sinks if sinks is None else np.full(paged.q.shape[1], sinks, np.float32),
        "out": np.zeros((*paged.q.shape[:2], paged.value_dim or d), np.float32),
    }
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(data, call, arguments, "out", 1e-4, {"geometry": paged.plain_geometry})


@given(
    st.data(),
    TOKENS,
    st.integers(1, 4),
    st.sampled_from([2, 8, 34, 64]),
    st.sampled_from(["float32", "bfloat16"]),
    SEEDS,
)
def test_rope(data: st.DataObject, t: int, q_heads: int, d: int, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = (2, 16, 2, d, dtype)
    geometry = kernels.KvGeometry(*sizes)
    positions = rng.integers(0, 50, t).astype(np.int32)
    slots = rng.permutation(16 * 8)[:t].astype(np.int64)
    if t:
        positions[0] = data.draw(st.sampled_from([0, 49, 50, -1, 2**31 - 1]), "a position")
        slots[-1] = data.draw(st.sampled_from([slots[-1], -1, -(2**63), 128, 2**62]), "a slot")
    rotated = data.draw(st.integers(0, d // 2), "rotated pairs")
    layer = data.draw(st.sampled_from([0, 1, 1, 1, 2, -1]), "layer")

    def call(module: Any, geometry: Any, qkv: Any, **arguments: Any) -> None:
        module.rope_and_store(
            qkv, arguments["positions"], arguments["cos"], arguments["sin"], arguments["pool"],
            geometry, layer, arguments["slots"], q_norm_D=arguments["q_norm"],
            k_norm_D=arguments["k_norm"],
        )  # fmt: skip

    arguments = {
        "geometry": geometry,
        "qkv": floats(rng, t, (q_heads + 4) * d),
        "positions": positions,
        "cos": floats(rng, 50, rotated),
        "sin": floats(rng, 50, rotated),
        "pool": np.zeros((8, geometry.page_bytes), np.uint8),
        "slots": slots,
        "q_norm": floats(rng, d),
        "k_norm": floats(rng, d) if data.draw(st.booleans()) else None,
    }
    with kernels.force_isa(data.draw(st.sampled_from(kernels.available_isas()), "isa")):
        check(data, call, arguments, "qkv", 1e-5, {"geometry": reference.KvGeometry(*sizes)})
