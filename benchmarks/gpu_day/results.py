"""What came of the stages, in one JSON file that is whole at any moment.

A stage says rows (`stage.Context`): facts, checks, and samples of benchmark cases. What a stage
said before it failed counts.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal["passed", "failed", "timed out", "could not run", "not begun"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "timed out", "could not run", "not begun")

FORMAT = 1

Row = dict[str, Any]


class ResultsError(ValueError):
    """A file that holds no results; the message names it."""


@dataclass(kw_only=True)
class StageResult:
    """One stage.

    Attributes:
        why: where it did not pass.
        commit: of the tree that ran.
        date: when it began, in UTC.
        seconds, cpu_seconds: on the clock, and of processors with all that it started.
        resumed: it ran in an earlier call, and this one took over what came of it.
    """

    status: Status
    why: str = ""
    commit: str = "unknown"
    date: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    resumed: bool = False
    rows: list[Row] = field(default_factory=list)

    def of_kind(self, kind: str) -> Iterator[Any]:
        """What its rows of a kind say: `fact`, `check`, `samples`, `left_out`, `machine`."""
        for row in self.rows:
            if kind in row:
                yield row[kind]


@dataclass(kw_only=True)
class Results:
    """A run of stages.

    Attributes:
        rehearsal: it ran on stand-ins for a GPU: figures mean nothing.
        budget_s: of this call.
        install: how the kit was made usable: seconds, and where the core came from.
    """

    rehearsal: bool
    budget_s: float
    install: dict[str, Any] = field(default_factory=dict)
    stages: dict[str, StageResult] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        """Write it beside the file, then put it in its place."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, indent=1)
        partial = file.with_suffix(".partial")
        partial.write_text(text + "\n")
        os.replace(partial, file)

    @classmethod
    def load(cls, file: Path) -> "Results":
        """Read it.

        Raises:
            ResultsError: it is no such file.
        """
        try:
            read = json.loads(file.read_text())
            if read.pop("format") != FORMAT:
                raise ResultsError(f"{file} is of another format: run the stages again")
            stages = {name: StageResult(**one) for name, one in read.pop("stages").items()}
            return cls(**read, stages=stages)
        except (OSError, json.JSONDecodeError, TypeError, KeyError, AttributeError) as error:
            raise ResultsError(
                f"{file} holds no results of tools/gpu_day run: {error!r}"
            ) from error


def sample_key(case: str, name: str, params: Mapping[str, Any]) -> str:
    """Names a point of a case, so that a later call measures it no more."""
    return json.dumps([case, name, params], sort_keys=True)
