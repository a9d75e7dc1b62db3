"""The table of `inlay plan --rules`: all modules in few rows.

A module that runs where the one above it does is told with that one, and layers alike are told as
one: `model.layers.3-29.mlp.experts`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from inlay.experts import ModulePlacement, RulePlacement, Run

_LAYERS = "model.layers"


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """Modules of one name, in one layer or several.

    Attributes:
        modules: their name; layers as ranges.
        rules: numbers of those that have these modules, or some that are told with them.
        why: these rules, or the reason where there are none.
    """

    modules: str
    prefill: Run
    decode: Run
    rules: tuple[int, ...]
    why: str


@dataclass
class _Shown:
    """A module with a row, and the rules of all that are told with it."""

    placed: ModulePlacement
    rules: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """Without its layer."""
        module = self.placed.module
        start = "" if module.layer is None else f"{_LAYERS}.{module.layer}"
        return module.name.removeprefix(start)

    @property
    def alike(self) -> tuple[object, ...]:
        """Equal where one row tells both."""
        in_layer = self.placed.module.layer is not None
        return in_layer, self.name, self.placed.prefill, self.placed.decode, frozenset(self.rules)


def module_rows(placed: RulePlacement) -> tuple[ModuleRow, ...]:
    """The rows, in the order in which a token passes what is first in each."""
    groups: dict[tuple[object, ...], list[_Shown]] = {}
    for shown in _shown(placed.modules):
        groups.setdefault(shown.alike, []).append(shown)
    return tuple(_row(group) for group in groups.values())


def _shown(modules: Sequence[ModulePlacement]) -> list[_Shown]:
    with_row: dict[str, _Shown] = {}  # by the name of each module, the one that tells it
    found = []
    for placed in modules:
        above = with_row.get(placed.module.name.rpartition(".")[0])
        if above is None or _devices(above.placed) != _devices(placed):
            above = _Shown(placed)
            found.append(above)
        with_row[placed.module.name] = above
        if placed.rule is not None:
            above.rules.add(placed.rule.number)
    return found


def _devices(placed: ModulePlacement) -> tuple[str, str]:
    return placed.prefill.device, placed.decode.device


def _row(group: Sequence[_Shown]) -> ModuleRow:
    first = group[0]
    layers = [one.placed.module.layer for one in group]
    name = first.name
    if layers[0] is not None:
        name = f"{_LAYERS}.{','.join(_ranges([layer or 0 for layer in layers]))}{name}"
    rules = tuple(sorted(first.rules))
    listed = ", ".join(str(number) for number in rules)
    return ModuleRow(
        modules=name,
        prefill=first.placed.prefill,
        decode=first.placed.decode,
        rules=rules,
        why=f"rule{'s' if len(rules) > 1 else ''} {listed}" if rules else first.placed.why,
    )


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    """`0-2`, `5`: of ascending numbers."""
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        yield str(found[0]) if len(found) == 1 else f"{found[0]}-{found[-1]}"
