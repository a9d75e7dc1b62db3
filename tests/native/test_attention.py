"""Paged attention and RoPE: every ISA against the reference, and the same bits in every company."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from inlay import kernels
from inlay.core.kv_format import gqa_format
from inlay.kernels import reference
from inlay.kernels._checks import to_bf16
from tests.native.cases import Paged, floats

CASES: list[dict[str, Any]] = [
    {"queries": [1, 5, 0, 33], "contexts": [7, 5, 9, 200], "group": 4},
    {"queries": [1, 130], "contexts": [65, 130], "kv_heads": 3, "group": 1, "head_dim": 32},
    {"queries": [70, 1], "contexts": [300, 64], "kv_heads": 1, "group": 7, "head_dim": 128},
    {"queries": [1, 40, 17], "contexts": [300, 140, 17], "window": 37},
    {"queries": [90], "contexts": [90], "window": 1},
    {"queries": [3, 1], "contexts": [21, 1], "head_dim": 80, "group": 3},
    {"queries": [2], "contexts": [40], "head_dim": 6, "page_tokens": 5, "kv_heads": 5},
    {"queries": [1, 9], "contexts": [70, 30], "head_dim": 256, "group": 16, "kv_heads": 1},
    {"queries": [3, 1, 20], "contexts": [1025, 3000, 1024], "kv_heads": 1},
    {"queries": [4, 40], "contexts": [2600, 1100], "kv_heads": 1, "window": 1200},
    # The windows of queries beside each other begin in two of the segments of 1,024 tokens.
    {"queries": [40], "contexts": [2600], "kv_heads": 1, "window": 1550},
    {"queries": [1, 1], "contexts": [100, 33], "page_tokens": 64, "group": 16, "layers": 1,
     "layer": 0},
    {"queries": [1, 20], "contexts": [70, 31], "kv_heads": 1, "group": 5, "head_dim": 40,
     "value_dim": 32},
    {"queries": [2, 1, 30], "contexts": [1100, 3000, 30], "kv_heads": 1, "group": 128,
     "head_dim": 72, "value_dim": 64, "layers": 1, "layer": 0},
    {"queries": [3], "contexts": [90], "kv_heads": 1, "group": 97, "head_dim": 10,
     "value_dim": 2, "window": 40, "page_tokens": 64},
    {"queries": [1, 3], "contexts": [300, 3], "kv_heads": 1, "group": 16, "head_dim": 576,
     "value_dim": 512},
    {"queries": [], "contexts": []},
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_reference(
    isa: str, rng: np.random.Generator, case: dict[str, Any], dtype: str
) -> None:
    if not case["queries"]:
        paged = Paged(rng, [1], [1], dtype=dtype)
        paged.queries, paged.contexts, paged.q = [], [], paged.q[:0]
        paged.page_table = paged.page_table[:0]
        out = paged.q.copy()
        kernels.paged_attention(
            paged.q, paged.pool, paged.geometry, 0, paged.page_table, np.zeros(1, np.int32),
            np.zeros(0, np.int32), 1.0, out,
        )  # fmt: skip
        return
    paged = Paged(rng, dtype=dtype, **case)
    assert np.allclose(paged.native(), paged.reference(), atol=3e-6)


@pytest.mark.parametrize("queries,contexts", [([1, 20], [40, 20]), ([2, 30], [2500, 1030])])
@pytest.mark.parametrize("window", [0, 1100])
def test_sinks_equal_reference(
    isa: str, rng: np.random.Generator, queries: list[int], contexts: list[int], window: int
) -> None:
    sinks = np.array([0.5, -np.inf, 30.0, -4.0], np.float32)
    paged = Paged(rng, queries, contexts, window=window, sinks=sinks)
    assert np.allclose(paged.native(), paged.reference(), atol=3e-6)
    without = Paged(np.random.default_rng(7), queries, contexts, window=window).native()
    same = (paged.native() == without).all(axis=(0, 2))
    assert same.tolist() == [False, True, False, False]


@pytest.mark.parametrize("queries,contexts", [([1, 20], [40, 20]), ([2, 30], [2500, 1030])])
@pytest.mark.parametrize("window", [0, 13])
def test_bounded_scores_equal_reference(
    isa: str, rng: np.random.Generator, queries: list[int], contexts: list[int], window: int
) -> None:
    paged = Paged(rng, queries, contexts, window=window, softcap=1.5)
    paged.scale *= 20  # scores far beyond the bound, too
    assert np.allclose(paged.native(), paged.reference(), atol=1e-5)
    paged.softcap = 0.0
    unbounded = paged.native()
    paged.softcap = 1.5
    assert not np.allclose(paged.native(), unbounded, atol=1e-2)


LATENT = {"kv_heads": 1, "group": 14, "head_dim": 40, "value_dim": 32}


@pytest.mark.parametrize("heads", [{"group": 3}, LATENT], ids=["heads", "latents"])
@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_query_alone_has_the_same_bits(
    isa: str,
    rng: np.random.Generator,
    dtype: str,
    window: int,
    heads: dict[str, int],
    threads: None,
) -> None:
    paged = Paged(rng, [150, 1, 9], [170, 90, 9], dtype=dtype, window=window, **heads)
    together = paged.native()
    for num_threads in (1, 3):
        kernels.set_num_threads(num_threads)
        for step in (1, 7, 64):
            pieces = [
                paged.part([(b, i, min(i + step, n))])
                for b, n in enumerate(paged.queries)
                for i in range(0, n, step)
            ]
            assert np.array_equal(np.concatenate(pieces), together)


@pytest.mark.parametrize("heads", [{"group": 3}, LATENT], ids=["heads", "latents"])
@pytest.mark.parametrize("window", [0, 1500])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_segments_on_any_number_of_threads_give_the_same_bits(
    isa: str,
    rng: np.random.Generator,
    dtype: str,
    window: int,
    heads: dict[str, int],
    threads: None,
) -> None:
    sinks = floats(rng, heads.get("kv_heads", 2) * heads["group"])
    paged = Paged(rng, [40, 1], [3100, 5000], dtype=dtype, window=window, sinks=sinks, **heads)
    kernels.set_num_threads(1)
    together = paged.native()
    for num_threads in (2, 5, 16):
        kernels.set_num_threads(num_threads)
        assert np.array_equal(paged.native(), together)
        pieces = [paged.part([(0, i, i + 1)]) for i in (0, 39)] + [paged.part([(1, 0, 1)])]
        assert np.array_equal(np.concatenate(pieces), together[[0, 39, 40]])


@given(data=st.data())
def test_any_mixture_of_sequences(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), min_size=1))
    paged = Paged(
        np.random.default_rng(len(lengths)),
        [new for new, _ in lengths],
        [new + old for new, old in lengths],
        kv_heads=data.draw(st.sampled_from([1, 2])),
        group=data.draw(st.sampled_from([1, 3, 4])),
        head_dim=data.draw(st.sampled_from([32, 40, 64])),
        dtype=data.draw(st.sampled_from(["float32", "bfloat16"])),
        page_tokens=data.draw(st.sampled_from([1, 8, 16])),
        window=data.draw(st.sampled_from([0, 0, 5, 64])),
    )
    expected = paged.reference()
    for isa in kernels.available_isas():
        with kernels.force_isa(isa):
            assert np.allclose(paged.native(), expected, atol=3e-6)


def test_memory_outside_the_context_is_never_used(isa: str, rng: np.random.Generator) -> None:
    paged = Paged(rng, [2, 1], [19, 50], window=18)
    expected = paged.native()
    live = np.zeros((len(paged.pool), 16), bool)
    for b, context in enumerate(paged.contexts):
        for position in range(max(0, context - paged.queries[b] + 1 - 18), context):
            live[paged.page_table[b, position // 16], position % 16] = True
    elements = paged.pool.view(np.float32).reshape(len(paged.pool), 2, 2, 16, 2, 64)
    elements[:, 0] = np.nan
    elements.transpose(0, 3, 1, 2, 4, 5)[~live] = np.nan
    paged.page_table[1, 0] = 10**6  # wholly before the window
    assert np.array_equal(paged.native(), expected)


def test_nan_stays_in_the_rows_that_it_touches(isa: str, rng: np.random.Generator) -> None:
    paged = Paged(rng, [3, 1], [1100, 50])
    expected = paged.native()
    paged.q[1, 2, 5] = np.nan
    out = paged.native()
    assert np.isnan(out[1, 2]).all()
    out[1, 2] = expected[1, 2]
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("plane", [0, 1], ids=["k", "v"])
@pytest.mark.parametrize("window", [0, 3, 70])
@pytest.mark.parametrize("dtype,group", [("float32", 1), ("float32", 4), ("bfloat16", 3)])
def test_a_token_touches_only_the_queries_that_see_it(
    isa: str,
    rng: np.random.Generator,
    value: float,
    plane: int,
    window: int,
    dtype: str,
    group: int,
) -> None:
    context, new, token = 150, 90, 103
    paged = Paged(rng, [new], [context], dtype=dtype, group=group, window=window)
    expected = paged.native()
    elements = paged.pool.view(np.float32 if dtype == "float32" else np.uint16)
    number = np.array([value], np.float32)
    elements.reshape(-1, 2, 2, 16, 2, 64)[
        paged.page_table[0, token // 16], paged.layer, plane, token % 16, 0, 5
    ] = (number if dtype == "float32" else to_bf16(number))[0]
    together = paged.native()
    for step in (1, 7):
        chunks = [paged.part([(0, i, min(i + step, new))]) for i in range(0, new, step)]
        assert np.array_equal(np.concatenate(chunks), together, equal_nan=True)
    positions = np.arange(context - new, context)
    sees = (token <= positions) & (positions < token + (window or context))
    assert np.array_equal(together[~sees], expected[~sees])
    assert np.array_equal(together[:, group:], expected[:, group:])
    assert (together[sees, :group] != expected[sees, :group]).any(axis=(1, 2)).all()
    with np.errstate(invalid="ignore"):
        assert np.allclose(together, paged.reference(), atol=3e-6, equal_nan=True)


def test_large_scores_do_not_overflow(isa: str, rng: np.random.Generator) -> None:
    paged = Paged(rng, [3], [40])
    paged.q = paged.q * 1e4
    assert np.isfinite(paged.native()).all()
    assert np.allclose(paged.native(), paged.reference(), atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim,rotary", [(64, 64), (64, 32), (128, 128), (40, 20), (6, 2)])
def test_rope_and_store_equals_reference(
    isa: str, rng: np.random.Generator, head_dim: int, rotary: int, dtype: str
) -> None:
    q_heads, kv_heads = 3, 2
    sizes = (3, 16, kv_heads, head_dim, dtype)
    geometry, plain = kernels.KvGeometry(*sizes), reference.KvGeometry(*sizes)
    cos, sin = floats(rng, 50, rotary // 2), floats(rng, 50, rotary // 2)
    for tokens in (0, 1, 5, 60):
        both = floats(rng, head_dim), floats(rng, head_dim)
        for norms, first in (((None, None), False), (both, False), (both, True)):
            qkv = floats(rng, tokens, (q_heads + 2 * kv_heads) * head_dim)
            positions = rng.integers(0, 50, tokens).astype(np.int32)
            slots = rng.permutation(8 * 16)[:tokens].astype(np.int64)
            slots[2:4] = -1
            pool = rng.integers(0, 255, (8, geometry.page_bytes)).astype(np.uint8)
            expected_qkv, expected_pool = qkv.copy(), pool.copy()
            arguments = (positions, cos, sin)
            kernels.rope_and_store(
                qkv, *arguments, pool, geometry, 1, slots,
                q_norm_D=norms[0], k_norm_D=norms[1], rotate_first=first,
            )  # fmt: skip
            reference.rope_and_store(
                expected_qkv, *arguments, expected_pool, plain, 1, slots, *norms, rotate_first=first
            )
            assert np.allclose(qkv, expected_qkv, atol=4e-6)
            if dtype == "float32":
                changed = pool != expected_pool
                got, want = pool.view(np.float32), expected_pool.view(np.float32)
                changed = got.view(np.uint32) != want.view(np.uint32)
                assert np.allclose(got[changed], want[changed], atol=4e-6)
            else:  # one step of bf16 where the roundings differ
                got, want = pool.view(np.uint16), expected_pool.view(np.uint16)
                assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("head_dim,rotary", [(40, 8), (72, 64), (6, 2)])
def test_rope_of_latents_turns_the_end(
    isa: str, rng: np.random.Generator, head_dim: int, rotary: int, dtype: str
) -> None:
    sizes = (2, 16, 1, head_dim, dtype, True)
    geometry, plain = kernels.KvGeometry(*sizes), reference.KvGeometry(*sizes)
    cos, sin = floats(rng, 50, rotary // 2), floats(rng, 50, rotary // 2)
    qkv = floats(rng, 30, 6 * head_dim)
    before, expected_qkv = qkv.copy(), qkv.copy()
    arguments = (rng.integers(0, 50, 30).astype(np.int32), cos, sin)
    slots = rng.permutation(4 * 16)[:30].astype(np.int64)
    pool = rng.integers(0, 255, (4, geometry.page_bytes)).astype(np.uint8)
    expected_pool = pool.copy()
    kernels.rope_and_store(qkv, *arguments, pool, geometry, 1, slots)
    reference.rope_and_store(expected_qkv, *arguments, expected_pool, plain, 1, slots)
    assert np.allclose(qkv, expected_qkv, atol=4e-6)
    heads, heads_before = (x.reshape(30, 6, head_dim) for x in (qkv, before))
    assert np.array_equal(heads[..., :-rotary], heads_before[..., :-rotary])
    kind = np.float32 if dtype == "float32" else np.uint16
    got, want = (x.view(kind).reshape(4, 2, 16, head_dim) for x in (pool, expected_pool))
    untouched = np.ones((4, 16), bool)
    untouched.flat[slots] = False
    bits = [x.view(np.uint8) for x in (got, want)]
    assert np.array_equal(*(x[:, 0] for x in bits))
    assert np.array_equal(*(x[:, 1][untouched] for x in bits))
    if dtype == "float32":
        assert np.allclose(got[:, 1][~untouched], want[:, 1][~untouched], atol=4e-6)
    else:
        assert np.abs(got.astype(int) - want.astype(int)).max() <= 1


def test_rope_of_a_token_alone_has_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    geometry = kernels.KvGeometry(1, 16, 1, 64, "bfloat16")
    cos, sin, norm = floats(rng, 500, 32), floats(rng, 500, 32), floats(rng, 64)
    qkv = floats(rng, 300, 5 * 64)
    positions, slots = np.arange(300, dtype=np.int32), np.arange(300, dtype=np.int64)
    pools = np.zeros((2, 19, geometry.page_bytes), np.uint8)
    alone = qkv.copy()
    kernels.rope_and_store(
        qkv, positions, cos, sin, pools[0], geometry, 0, slots, q_norm_D=norm, k_norm_D=norm
    )
    for t in range(300):
        one = slice(t, t + 1)
        kernels.rope_and_store(
            alone[one], positions[one], cos, sin, pools[1], geometry, 0, slots[one],
            q_norm_D=norm, k_norm_D=norm,
        )  # fmt: skip
    assert np.array_equal(alone, qkv)
    assert np.array_equal(pools[0], pools[1])


def test_geometry_of_a_kv_format() -> None:
    kv_format = gqa_format(layers=3, kv_heads=2, head_dim=64, dtype="bfloat16", page_tokens=16)
    geometry = kernels.kv_geometry(kv_format, 64)
    assert geometry.page_bytes == kv_format.page_bytes
    assert (geometry.layers, geometry.kv_heads, geometry.dtype) == (3, 2, "bfloat16")
