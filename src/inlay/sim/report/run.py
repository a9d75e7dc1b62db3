"""What a report is of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from inlay.sim.results import Results, ResultsFile
from inlay.sim.scenario import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """One simulation, beside others of the same trace or of another.

    Attributes:
        name: as plots call it; no two of a report have the same.
        scenario: what was simulated.
        results: what came of it.
        figures: as `figures.figures` finds them.
    """

    name: str
    scenario: Scenario
    results: Results | ResultsFile
    figures: Mapping[str, Any]
