from itertools import count, cycle, repeat
from typing import Any

import pytest

from benchmarks.triples import Comparison, Limit, Samples, measure_triples


def comparison(limits: Any = None, **fields: Any) -> Comparison:
    """A comparison whose limit takes the given values in turn."""
    limit = Limit(name="copy", measure=lambda: next(limits)) if limits else None
    return Comparison(name="rate", ours=lambda: 9.0, limit=limit, **fields)


def only(samples: list[Samples]) -> Samples:
    (found,) = samples
    return found


def test_steady_triples_are_all_kept() -> None:
    found = only(measure_triples(comparison(repeat(10.0)), repeats=5))
    assert found.values == [9.0] * 5
    assert found.limit == ("copy", [10.0] * 5)
    assert found.dropped == 0


def test_the_limit_of_a_triple_is_the_mean_of_those_around_it() -> None:
    found = only(measure_triples(comparison(iter([10.0, 10.8, 10.4])), repeats=2))
    assert found.limit == ("copy", pytest.approx([10.4, 10.6]))


def test_a_triple_between_unlike_limits_is_dropped_and_replaced() -> None:
    # 10 -> 10 kept, 10 -> 12 dropped, 12 -> 12 kept, 12 -> 12 kept
    found = only(measure_triples(comparison(iter([10.0, 10.0, 12.0, 12.0, 12.0])), repeats=3))
    assert found.limit == ("copy", [10.0, 12.0, 12.0])
    assert found.dropped == 1


def test_too_much_noise_gives_no_result() -> None:
    found = only(measure_triples(comparison(cycle([10.0, 20.0])), repeats=4))
    assert found.values == [] and found.limit is None
    assert found.dropped == 8


def test_without_a_limit_nothing_is_dropped() -> None:
    values = count(1.0)
    found = only(measure_triples(Comparison(name="x", ours=lambda: next(values)), repeats=3))
    assert found.values == [1.0, 2.0, 3.0] and found.limit is None


def test_sides_take_turns_at_being_first() -> None:
    calls: list[str] = []

    def side(name: str) -> Any:
        return lambda: calls.append(name) or 1.0

    measure_triples(
        Comparison(name="x", ours=side("ours"), peers={"a": side("a"), "b": side("b")}), repeats=3
    )
    assert calls == ["ours", "a", "b", "a", "b", "ours", "b", "ours", "a"]


def test_slow_peers_sit_out_quick_runs() -> None:
    fields = {"slow_peers": {"slow 1.0": lambda: 3.0}}
    assert not only(measure_triples(comparison(**fields), repeats=2, quick=True)).peers
    assert only(measure_triples(comparison(**fields), repeats=2)).peers == {"slow 1.0": [3.0, 3.0]}


def test_one_call_may_give_several_measurements() -> None:
    rate, latency = measure_triples(
        Comparison(
            name=("read", "read_p50_us"),
            ours=lambda: {"read": 5.0, "read_p50_us": 40.0},
            limit=Limit(name="copy", measure=lambda: 10.0),
            peers={"p": lambda: {"read": 4.0, "read_p50_us": 50.0}},
        ),
        repeats=2,
    )
    assert (rate.values, rate.limit, rate.peers) == (
        [5.0] * 2,
        ("copy", [10.0] * 2),
        {"p": [4.0] * 2},
    )
    assert (latency.values, latency.limit, latency.peers) == ([40.0] * 2, None, {"p": [50.0] * 2})


def test_a_constant_limit_is_not_called() -> None:
    fixed = Comparison(name="x", ours=lambda: 0.9, limit=Limit(name="sum of links", measure=1.0))
    assert only(measure_triples(fixed, repeats=2)).limit == ("sum of links", [1.0, 1.0])


def test_a_side_that_gives_undeclared_names_is_refused() -> None:
    with pytest.raises(ValueError, match="declared are"):
        measure_triples(Comparison(name="x", ours=lambda: {"y": 1.0}), repeats=1)
