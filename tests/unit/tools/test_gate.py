"""What of the tests the gate runs."""

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.gate import FEW, covering, gate_tests, left_to_full


def pairs(case: dict[str, Any]) -> set[Any]:
    return set(itertools.combinations(sorted(case.items()), 2))


def test_every_pair_is_met_by_far_fewer_cases() -> None:
    cases = [
        {"format": a, "shape": b, "threads": c}
        for a, b, c in itertools.product(range(8), range(7), range(6))
    ]
    kept = covering(cases, 2)
    assert set().union(*map(pairs, cases)) == set().union(*(pairs(cases[index]) for index in kept))
    assert len(kept) <= 80 < len(cases)
    assert kept == sorted(set(kept))


def test_few_cases_are_all_kept() -> None:
    cases = [{"a": number % 2, "b": number % 3} for number in range(FEW)]
    assert covering(cases, 2) == list(range(FEW))


def test_each_value_of_one_parameter_is_kept() -> None:
    cases = [{"value": number} for number in range(50)]
    assert covering(cases, 2) == list(range(50))


def test_rows_of_a_table_are_all_kept() -> None:
    """Parameters that change together, as in parametrize("text, message", [...])."""
    cases = [{"text": number, "message": -number} for number in range(50)]
    assert covering(cases, 2) == list(range(50))


def item(nodeid: str, **params: Any) -> Any:
    return SimpleNamespace(nodeid=nodeid, callspec=SimpleNamespace(params=params))


def test_each_instruction_set_has_all_pairs_of_the_rest() -> None:
    values = [object() for _ in range(8)]
    items = [
        item(f"t.py::test[{isa}-{a}-{b}-{c}]", isa=isa, a=values[a], b=values[b], c=values[c])
        for isa in ("scalar", "avx2")
        for a, b, c in itertools.product(range(8), range(3), range(3))
    ]
    kept = [one.callspec.params for one in gate_tests(items, frozenset())]
    for isa in ("scalar", "avx2"):
        of_isa = [one for one in kept if one["isa"] == isa]
        assert 24 <= len(of_isa) < 72
        assert {(id(one["a"]), id(one["b"])) for one in of_isa} == {
            (id(values[a]), id(values[b])) for a in range(8) for b in range(3)
        }


def test_each_value_of_two_parameters_that_meet_each_other() -> None:
    values = [object() for _ in range(5)]
    table = [
        item(f"t.py::test[{a}-{b}]", a=values[a], b=values[b])
        for a, b in itertools.product(range(5), range(4))
    ]
    kept = [one.callspec.params for one in gate_tests(table, frozenset())]
    assert len(kept) == 5
    assert {id(one["a"]) for one in kept} == set(map(id, values))
    assert {id(one["b"]) for one in kept} == set(map(id, values[:4]))
    rows = table[:-1]  # chosen by hand: one is missing
    assert gate_tests(rows, frozenset()) == rows


def test_the_list_names_files_tests_and_cases() -> None:
    text = "# why\na.py\n\nb.py::test_one\nb.py::test_two[x]  # and why\n"
    left = left_to_full(text)
    assert left == {"a.py", "b.py::test_one", "b.py::test_two[x]"}
    items = [
        item(name)
        for name in ("a.py::test", "b.py::test_one[1]", "b.py::test_two[x]", "b.py::test_two[y]")
    ]
    assert [one.nodeid for one in gate_tests(items, left)] == ["b.py::test_two[y]"]


def test_a_name_that_is_no_test_any_more_is_an_error() -> None:
    left = frozenset({"a.py::test_renamed", "not_collected.py::test"})
    with pytest.raises(pytest.UsageError, match=r"do not exist: \['a.py::test_renamed'\]"):
        gate_tests([item("a.py::test")], left)
