"""A case as its TOML file declares it: workload, measurements, targets, and who runs it."""

import importlib
import itertools
import tomllib
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.needs import problem_of
from benchmarks.triples import Comparison, Samples

CASES = Path(__file__).parent
Params = Mapping[str, Any]

TARGETS = {
    "of_limit", "of_peer", "of_best_peer", "of_best_peer_below_80", "never_behind", "at_least",
    "at_most",
}  # fmt: skip
KEYS = {
    "about", "measures", "needs", "runner", "seeds", "repeats", "quick_repeats", "packages",
    "workload", "quick_workload", "defaults", "measurements",
}  # fmt: skip


class CaseError(ValueError):
    """A case file that cannot be run; the message names the file and what to change."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One declared measurement: a name, the parameter values it is taken for, and its target.

    Every value of `params` is combined with every other and with every one of `rows`, whose values
    belong together.
    """

    name: str
    unit: str
    better: str
    rows: list[Mapping[str, Any]] = field(default_factory=lambda: [{}])
    quick_rows: list[Mapping[str, Any]] | None = None
    params: Mapping[str, list[Any]] = field(default_factory=dict)
    quick_params: Mapping[str, list[Any]] = field(default_factory=dict)
    target: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.better not in ("higher", "lower"):
            raise ValueError(f"{self.name}: better is {self.better!r}, allowed: higher, lower")
        if unknown := self.target.keys() - TARGETS:
            raise ValueError(f"{self.name}: target {sorted(unknown)}, allowed: {sorted(TARGETS)}")

    def covers(self, params: Params) -> bool:
        """Whether these parameter values are declared here, for full or for quick runs."""
        own = {name: value for name, value in params.items() if name in self.params}
        row = {name: value for name, value in params.items() if name not in self.params}
        return (
            own.keys() == self.params.keys()
            and row in (*self.rows, *(self.quick_rows or ()))
            and all(
                value in (*self.params[name], *self.quick_params.get(name, ()))
                for name, value in own.items()
            )
        )

    def points(self, quick: bool) -> Iterator[dict[str, Any]]:
        """Every combination of parameter values, the last parameter varying fastest."""
        rows = self.quick_rows if quick and self.quick_rows is not None else self.rows
        chosen = {**self.params, **(self.quick_params if quick else {})}
        for row, *values in itertools.product(rows, *chosen.values()):
            yield {**row, **dict(zip(chosen, values, strict=True))}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One benchmark, as declared in `benchmarks/<area>/<case>.toml`.

    Attributes:
        needs: what a whole record needs, in the words of `benchmarks.needs`.
    """

    name: str
    about: str
    runner: Callable[["Run"], Generator[Comparison | Samples, None, None]]
    measurements: tuple[Measurement, ...]
    workload: Mapping[str, Any]
    quick_workload: Mapping[str, Any]
    seeds: tuple[int, ...] = (0,)
    repeats: int = 30
    quick_repeats: int = 8
    packages: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()

    def declared(self, name: str, params: Params) -> Measurement:
        """The declaration of a measurement that the runner yields."""
        for measurement in self.measurements:
            if measurement.name == name and measurement.covers(params):
                return measurement
        raise CaseError(f"{self.name}.toml declares no measurement {name} with {dict(params)}")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a runner is given: one run of a case, quick or full."""

    case: Case
    quick: bool = False
    peers: Path | None = None

    @property
    def workload(self) -> dict[str, Any]:
        """The workload table; in a quick run with the quick one's values over it."""
        return {**self.case.workload, **(self.case.quick_workload if self.quick else {})}

    @property
    def repeats(self) -> int:
        """Triples to keep of each comparison."""
        return self.case.quick_repeats if self.quick else self.case.repeats

    @property
    def seeds(self) -> tuple[int, ...]:
        """Random seeds of the workload; a runner draws from these and nothing else."""
        return self.case.seeds

    def params(self, name: str) -> Iterator[dict[str, Any]]:
        """The declared parameter points of a measurement, in file order."""
        for measurement in self.case.measurements:
            if measurement.name == name:
                yield from measurement.points(self.quick)


def case_names() -> list[str]:
    """All declared cases as area/case."""
    return sorted(str(file.relative_to(CASES).with_suffix("")) for file in CASES.glob("*/*.toml"))


def load_declaration(name: str) -> dict[str, Any]:
    """The TOML table of a case.

    Raises:
        CaseError: an unknown case, key or need, or `measures` names no path of the repository.
    """
    file = CASES / f"{name}.toml"
    if not file.is_file():
        raise CaseError(f"no case {name}; there are: {', '.join(case_names())}")
    table = tomllib.loads(file.read_text())
    if unknown := table.keys() - KEYS:
        raise CaseError(f"{name}.toml: unknown keys {sorted(unknown)}, allowed: {sorted(KEYS)}")
    if missing := {"about", "measurements"} - table.keys():
        raise CaseError(f"{name}.toml: {sorted(missing)} missing")
    for problem in filter(
        None, [*_paths_problems(table), *map(problem_of, table.get("needs", ()))]
    ):
        raise CaseError(f"{name}.toml: {problem}")
    return table


def _paths_problems(table: Mapping[str, Any]) -> Iterator[str]:
    if not table.get("measures"):
        yield 'measures is missing: list the paths that the case measures, as in ["native/net"]'
    for path in table.get("measures", ()):
        # Git names files so, and its log is compared with these.
        if Path(path).is_absolute() or ".." in Path(path).parts or str(Path(path)) != path:
            yield f"measures names {path!r}: write it relative to the repository, as in native/net"
        elif not (ROOT / path).exists():
            yield f"measures names {path}, which the repository does not have"


def measured_paths(name: str) -> list[str]:
    """The paths of which a change makes a record of the case older: what it measures, and itself.

    Raises:
        CaseError: as `load_declaration`.
    """
    table = load_declaration(name)
    area, own_name = name.split("/")
    own = [f"benchmarks/{name}.toml", f"benchmarks/{area}/{table.get('runner', own_name)}.py"]
    return [*table["measures"], *own]


def load_case(name: str) -> Case:
    """Read a case file and import its runner: `measure` in `<area>/<runner>.py`."""
    table = load_declaration(name)
    area, own_name = name.split("/")
    module = importlib.import_module(f"benchmarks.{area}.{table.pop('runner', own_name)}")
    table.pop("measures")
    try:
        defaults = table.pop("defaults", {})
        measurements = tuple(
            Measurement(**_over(defaults, row)) for row in table.pop("measurements")
        )
    except (TypeError, ValueError) as error:
        raise CaseError(f"{name}.toml: {error}") from error
    return Case(
        name=name,
        runner=module.measure,
        measurements=measurements,
        workload=table.pop("workload", {}),
        quick_workload=table.pop("quick_workload", {}),
        seeds=tuple(table.pop("seeds", (0,))),
        packages=tuple(table.pop("packages", ())),
        needs=tuple(table.pop("needs", ())),
        **table,
    )


def _over(defaults: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """A measurement's table over the defaults; tables of parameters are merged."""
    tables = {
        key: {**defaults.get(key, {}), **row.get(key, {})} for key in ("params", "quick_params")
    }
    return {**defaults, **row, **tables}
