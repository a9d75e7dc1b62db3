"""Which tests the gate runs, that is `./tools/check` and plain `pytest`; `--full` runs all.

Two things leave it: tests named in tests/left_to_full.txt, whose faults something cheaper finds,
and cases of parametrised tests that meet no pair of values for the first time. A test with three
parameters of ten values each has a thousand cases, a hundred of which meet each pair once, and
nearly all faults show with some pair (Kuhn, Wallace and Gallo, "Software Fault Interactions and
Implications for Software Testing", 2004). Where all values of two parameters meet each other, the
pairs are all cases, so each value is met once; kernels, which take an instruction set beside two
others, keep the pairs.
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
    for (_, apart), cases in functions.items():
        parameters = [_parameters(case) for case in cases]
        together = 1 if not any(apart) and _is_table(parameters) else 2
        kept |= {id(cases[index]) for index in covering(parameters, together)}
    return [item for item in items if id(item) in kept]


def _parameters(item: pytest.Item) -> dict[str, Hashable]:
    """A number for each parameter's value: the same object has the same number."""
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else {name: id(one) for name, one in callspec.params.items()}


def _is_table(cases: Sequence[Mapping[str, Hashable]]) -> bool:
    """Whether each value of one parameter meets each value of the other."""
    if len(cases[0]) != 2:
        return False
    first, second = ({case[name] for case in cases} for name in cases[0])
    return len(cases) == len(first) * len(second)


def covering(cases: Sequence[Mapping[str, Hashable]], together: int) -> list[int]:
    """Indexes of cases that meet each combination of values of some parameters that a case has.

    Args:
        cases: the value of each parameter, by name.
        together: of how many parameters: 2 for every pair of values.

    Returns:
        All of them where there are at most `FEW`; else those that a greedy search keeps, in their
        order. Each value is met where there are fewer parameters.
    """
    if len(cases) <= FEW:
        return list(range(len(cases)))
    met = [
        frozenset(itertools.combinations(sorted(case.items(), key=lambda one: one[0]), together))
        or frozenset((one,) for one in case.items())
        for case in cases
    ]
    missing = set().union(*met)
    kept = list[int]()
    # Cases that meet much at once first; the same order on every machine.
    while missing:
        best = max(range(len(cases)), key=lambda index: (len(met[index] & missing), -index))
        kept.append(best)
        missing -= met[best]
    return sorted(kept)
