"""Adapters beside packed weights: every ISA beside the reference, the same bits in company."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError
from inlay.kernels import reference
from tests.native.cases import floats, pairs, routing

EXPERTS, TOP_K = 6, 3


def halves(values: Any) -> Any:
    """Rounded to bfloat16."""
    return (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def same(values: Any) -> Any:
    return values


HELD = pytest.mark.parametrize(
    "held", [pytest.param(same, id="float32"), pytest.param(halves, id="bfloat16")]
)


def linear_parts(
    rng: np.random.Generator, rank: int, held: Callable[[Any], Any] = same
) -> list[tuple[int, int, Any, Any, float]]:
    """Two modules of one matrix, and one of some columns alone."""
    wide, narrow = held(floats(rng, rank, 70)), held(floats(rng, rank + 1, 33))
    return [
        (0, 0, wide, held(floats(rng, 40, rank)), 0.5),
        (0, 40, wide, held(floats(rng, 65, rank)), 0.5),
        (30, 130, narrow, held(floats(rng, 7, rank + 1)), 2.0),
    ]


def expert_adapters(
    rng: np.random.Generator,
    experts: int,
    hidden: int,
    width: int,
    rank: int,
    held: Callable[[Any], Any] = same,
) -> tuple[kernels.ExpertAdapter, reference.ExpertAdapter]:
    """The same for the kernels and the reference; some matrices have none, ranks differ."""
    both = (
        kernels.ExpertAdapter(experts, hidden, width),
        reference.ExpertAdapter(experts, hidden, width),
    )
    for expert in range(experts):
        for number, (matrix, (n, k)) in enumerate(
            (("gate", (width, hidden)), ("up", (width, hidden)), ("down", (hidden, width)))
        ):
            if (expert + number) % 4 == 3:
                continue
            r = rank + (expert + number) % 2
            a, b = held(floats(rng, r, k) / np.float32(k**0.5)), held(floats(rng, n, r) / 4)
            for adapter in both:
                adapter.set(expert, matrix, a, b, 0.5)
    return both


@HELD
def test_linear(isa: str, held: Callable[[Any], Any], rng: np.random.Generator) -> None:
    parts = [linear_parts(rng, rank, held) for rank in (1, 6)]
    packed = [kernels.LinearAdapter(one) for one in parts]
    plain = [reference.LinearAdapter(one) for one in parts]
    value_bytes = 4 if held is same else 2
    assert packed[1].nbytes == value_bytes * (6 * 70 + 7 * 33 + 6 * 64 + 6 * 128 + 7 * 64), (
        "one A is shared"
    )
    for tokens in (1, 5, 250):
        x, before = floats(rng, tokens, 80)[:, :75], floats(rng, tokens, 150)[:, :140]
        rows = [(0, 0, tokens // 3), (1, tokens // 3, tokens // 2), (0, tokens // 2 + 1, tokens)]
        rows = [row for row in rows if row[1] <= row[2]]
        got, expected = before.copy(), before.copy()
        kernels.add_adapters(x, [(packed[n], first, end) for n, first, end in rows], got)
        reference.add_adapters(x, [(plain[n], first, end) for n, first, end in rows], expected)
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        for n, first, end in rows:
            for token in range(first, end, 17):  # alone: the same bits
                alone = before[token : token + 1].copy()
                kernels.add_adapters(x[token : token + 1], [(packed[n], 0, 1)], alone)
                assert np.array_equal(alone[0], got[token])


def test_held_forms_give_the_same_bits(isa: str, rng: np.random.Generator) -> None:
    """Values that are all bfloat16 are held so; one that is not, and adds 0, brings float32."""
    a, b, x = halves(floats(rng, 5, 70)), halves(floats(rng, 90, 5)), floats(rng, 9, 70)
    third = np.float32(1 / 3)
    longer = np.vstack([a, np.full((1, 70), third)]), np.hstack([b, np.zeros((90, 1), np.float32)])
    other = b.copy()
    other[-1, -1] = third  # of a column that is compared with none
    results = []
    for matrices in ((a, b), longer, (a, other)):
        adapter = kernels.LinearAdapter([(0, 0, *matrices, 0.5)])
        results.append((adapter.nbytes, np.zeros((9, 90), np.float32)))
        kernels.add_adapters(x, [(adapter, 0, 9)], results[-1][1])
    (small, got), (_, of_a), (large, of_b) = results
    assert (small, large) == (2 * (5 * 70 + 5 * 128), 2 * 5 * 70 + 4 * 5 * 128)
    assert np.array_equal(got, of_a)
    assert np.array_equal(got[:, :-1], of_b[:, :-1])


def test_experts_are_held_in_their_values_size(rng: np.random.Generator) -> None:
    adapter = kernels.ExpertAdapter(2, 70, 90)
    a, b = floats(rng, 5, 70), floats(rng, 90, 5)
    for values, expected in (
        ((a, b), 4 * (5 * 70 + 5 * 128)),
        ((halves(a), b), 2 * 5 * 70 + 4 * 5 * 128),
        ((halves(a), halves(b)), 2 * (5 * 70 + 5 * 128)),
    ):
        adapter.set(1, "gate", *values, 1.0)  # instead of the one before
        assert adapter.nbytes == expected


@HELD
@pytest.mark.parametrize(
    ("format", "hidden", "width"),
    [("float32", 100, 72), ("bfloat16", 100, 72), ("int4:g32", 160, 96)],
)
def test_experts(
    isa: str,
    held: Callable[[Any], Any],
    format: str,
    hidden: int,
    width: int,
    rng: np.random.Generator,
) -> None:
    packed, plain = pairs(rng, EXPERTS, hidden, width, format)
    packed_shared, plain_shared = pairs(rng, 1, hidden, 64, format)
    adapters = [expert_adapters(rng, EXPERTS, hidden, width, rank, held) for rank in (1, 5)]
    shared = [expert_adapters(rng, 1, hidden, 64, rank, held) for rank in (2, 3)]
    for tokens in (1, 7, 300):
        x = floats(rng, tokens, hidden)
        ids, weights = routing(rng, tokens, EXPERTS, TOP_K)
        cuts = (tokens // 4, tokens // 2)

        def rows(which: int, cuts: tuple[int, int] = cuts, tokens: int = tokens) -> list[Any]:
            """Base rows, then two adapters', one without shared experts' at last."""
            return [
                (adapters[0][which], shared[0][which], cuts[0], cuts[1]),
                (adapters[1][which], None, cuts[1], tokens),
            ]

        got, expected = np.empty((2, tokens, hidden), np.float32)
        call = (x, packed, ids, weights)
        kernels.moe(*call, got, shared=packed_shared, adapters=rows(0))
        reference.moe(x, plain, ids, weights, expected, shared=plain_shared, adapters=rows(1))
        tolerance = 3e-6 if format == "float32" else 1e-2
        assert np.linalg.norm(got - expected) <= tolerance * np.linalg.norm(expected)
        base = np.empty_like(got)
        kernels.moe(*call, base, shared=packed_shared)
        assert np.array_equal(base[: cuts[0]], got[: cuts[0]]), "rows without an adapter"
        assert not np.isclose(base[cuts[0] :], got[cuts[0] :]).all(axis=1).any()
        for token in range(0, tokens, 23):  # alone: the same bits
            one = slice(token, token + 1)
            alone = np.empty((1, hidden), np.float32)
            of = [(*row[:2], 0, 1) for row in rows(0) if row[2] <= token < row[3]]
            kernels.moe(
                x[one], packed, ids[one], weights[one], alone, shared=packed_shared, adapters=of
            )
            assert np.array_equal(alone[0], got[token])


@HELD
@pytest.mark.parametrize("nodes", [2, 3])
def test_experts_in_shards(
    nodes: int, held: Callable[[Any], Any], rng: np.random.Generator, threads: None
) -> None:
    """What shards add up to: each has its part of a down matrix's inner size."""
    kernels.set_topology([[0]] * nodes)
    packed, plain = pairs(rng, EXPERTS, 100, 96, "float32")
    adapter, plain_adapter = expert_adapters(rng, EXPERTS, 100, 96, 4, held)
    x = floats(rng, 20, 100)
    ids, weights = routing(rng, 20, EXPERTS, TOP_K)
    got, expected = np.empty((2, 20, 100), np.float32)
    kernels.moe(x, packed, ids, weights, got, adapters=[(adapter, None, 3, 20)])
    reference.moe(x, plain, ids, weights, expected, adapters=[(plain_adapter, None, 3, 20)])
    assert np.linalg.norm(got - expected) <= 3e-6 * np.linalg.norm(expected)


def _linear_call(**changes: Any) -> None:
    rng = np.random.default_rng(0)
    adapter = kernels.LinearAdapter([(0, 0, floats(rng, 2, 8), floats(rng, 5, 2), 1.0)])
    given = {"x": floats(rng, 4, 8), "rows": [(adapter, 0, 4)], "out": floats(rng, 4, 5)}
    given |= {name: value(adapter) if callable(value) else value for name, value in changes.items()}
    kernels.add_adapters(given["x"], given["rows"], given["out"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": lambda a: [(a, 0, 5)]}, "rows 0 to 5"),
        ({"rows": lambda a: [(a, 2, 3), (a, 1, 4)]}, "rows 1 to 4"),
        ({"rows": lambda a: [(a, 0)]}, "tuple of"),
        ({"rows": lambda a: [(None, 0, 1)]}, "tuple of"),
        ({"rows": lambda a: [("x", 0, 1)]}, "tuple of"),
        ({"rows": 5}, "must be a sequence"),
        ({"x": np.zeros((4, 7), np.float32)}, "takes 8 columns"),
        ({"out": np.zeros((4, 4), np.float32)}, "adds to 5"),
        ({"out": np.zeros((3, 5), np.float32)}, "tokens of x_TK"),
    ],
)
def test_bad_calls(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        _linear_call(**changes)


def test_bad_adapters(rng: np.random.Generator) -> None:
    a, b = floats(rng, 2, 8), floats(rng, 5, 2)
    for parts, message in (
        ([], "at least one"),
        ([(0, 0, a, b[:, :1].copy(), 1.0)], "rank of a_RK"),
        ([(0, -1, a, b, 1.0)], "columns"),
        ([(0, 0, a, b, float("nan"))], "finite"),
        ([(0, 0, a.astype(np.float64), b, 1.0)], "a_RK"),
        ([(0, 0, a, b, 1.0), (0, 4, a, b, 1.0)], "output column 4"),
    ):
        with pytest.raises(ArgumentError, match=message):
            kernels.LinearAdapter(parts)
    adapter = kernels.ExpertAdapter(2, 8, 5)
    for arguments, message in (
        ((2, "gate", a, b, 1.0), "expert"),
        ((0, "router", a, b, 1.0), "gate, up or down"),
        ((0, "down", a, b, 1.0), "inner size"),
    ):
        with pytest.raises(ArgumentError, match=message):
            adapter.set(*arguments)
    experts = kernels.ExpertWeights(3, 8, 5)
    x, ids, weights = np.ones((1, 8), np.float32), np.zeros((1, 1), np.int32), np.ones((1, 1))
    call = (x, experts, ids, weights.astype(np.float32), np.empty((1, 8), np.float32))
    with pytest.raises(ArgumentError, match="for 2 experts"):
        kernels.moe(*call, adapters=[(adapter, None, 0, 1)])
    with pytest.raises(ArgumentError, match="there are none"):
        kernels.moe(*call, adapters=[(None, adapter, 0, 1)])
