"""Which tests the gate runs, that is `./tools/check` and plain `pytest`; `--full` runs all.

Two things leave it: tests named in tests/left_to_full.txt, whose faults something cheaper finds,
and cases of parametrised tests that meet no pair of values for the first time. A test with three
parameters of ten values each has a thousand cases, a hundred of which meet each pair once, and
nearly all faults show with some pair (Kuhn, Wallace and Gallo, "Software Fault Interactions and
Implications for Software Testing", 2004).
"""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import pytest

LEFT = Path(__file__).parents[1] / "left_to_full.txt"

# Fewer cases than this are all kept: they cost little.
FEW = 8
# Each value of these has pairs of its own, since a machine runs some of them only.
APART = ("isa",)


def left_to_full(text: str) -> frozenset[str]:
    """Names of tests in the list: `FILE`, `FILE::TEST` or `FILE::TEST[CASE]`."""
    lines = (line.partition(" #")[0].strip() for line in text.splitlines())
    return frozenset(line for line in lines if line and not line.startswith("#"))


def gate_tests(items: Sequence[pytest.Item], left: frozenset[str]) -> list[pytest.Item]:
    """What the gate runs of collected tests.

    Args:
        items: the tests of whole files.
        left: names as `left_to_full` gives them.

    Raises:
        pytest.UsageError: a name is no test of a file that was collected.
    """
    named = {name: item for item in items for name in _names(item)}
    files = {item.nodeid.partition("::")[0] for item in items}
    unknown = [name for name in left - named.keys() if name.partition("::")[0] in files]
    if unknown:
        raise pytest.UsageError(f"{LEFT.name} names tests that do not exist: {sorted(unknown)}")
    return _thinned([item for item in items if left.isdisjoint(_names(item))])


def _names(item: pytest.Item) -> tuple[str, str, str]:
    file = item.nodeid.partition("::")[0]
    return file, item.nodeid.partition("[")[0], item.nodeid


def _thinned(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    functions: dict[tuple[str, Hashable], list[pytest.Item]] = {}
    for item in items:
        parameters = _parameters(item)
        apart = tuple(parameters.get(name) for name in APART)
        functions.setdefault((item.nodeid.partition("[")[0], apart), []).append(item)
    kept = set()
    for cases in functions.values():
        kept |= {id(cases[index]) for index in pairwise([_parameters(case) for case in cases])}
    return [item for item in items if id(item) in kept]


def _parameters(item: pytest.Item) -> dict[str, Hashable]:
    """A number for each parameter's value: the same object has the same number."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else {name: id(one) for name, one in callspec.params.items()}


def pairwise(cases: Sequence[Mapping[str, Hashable]]) -> list[int]:
    """Indexes of cases that meet every pair of values of two parameters that some case has.

    Args:
        cases: the value of each parameter, by name.

    Returns:
        All of them where there are at most `FEW`; else those that a greedy search keeps, in their
        order. Each value of a single parameter is kept.
    """
    if len(cases) <= FEW:
        return list(range(len(cases)))
    pairs = [
        frozenset(itertools.combinations(sorted(case.items(), key=lambda one: one[0]), 2))
        or frozenset(case.items())
        for case in cases
    ]
    missing = set().union(*pairs)
    kept = list[int]()
    # Cases that meet many new pairs at once first; the same order on every machine.
    while missing:
        best = max(range(len(cases)), key=lambda index: (len(pairs[index] & missing), -index))
        kept.append(best)
        missing -= pairs[best]
    return sorted(kept)
