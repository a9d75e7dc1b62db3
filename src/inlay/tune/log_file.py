"""trainer_log.jsonl: a line for each logging step, with LLaMA-Factory's keys."""

import json
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.core.records import parse_record
from inlay.tune.folders import write_whole

if TYPE_CHECKING:
    from inlay.tune.trainer import StepFigures

NAME = "trainer_log.jsonl"


class LogFile:
    """The file of one run."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / NAME
        self._first = 0

    def begin(self, step: int) -> None:
        """Begin after a step: what was written of later ones comes again."""
        self._first = step
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = []
        if step and self._file.is_file():
            for line in self._file.read_text("utf-8").splitlines():
                try:
                    if parse_record(line)["current_steps"] <= step:
                        kept.append(line + "\n")
                except (ValueError, KeyError, TypeError):  # the process ended within a line
                    break
        write_whole(self._file, "".join(kept).encode())

    def add(self, figures: "StepFigures", loss: float, seconds: float, tokens: int | None) -> None:
        """Add a line.

        Args:
            loss: mean of the steps since the last line.
            seconds: since `begin`.
            tokens: read so far; None: they are left out.
        """
        left = (figures.total - figures.step) * seconds / max(1, figures.step - self._first)
        line = {
            "current_steps": figures.step,
            "total_steps": figures.total,
            "loss": round(loss, 6),
            "lr": figures.learning_rate,
            "epoch": round(figures.epoch, 4),
            "percentage": round(100 * figures.step / figures.total, 2),
            "elapsed_time": str(timedelta(seconds=round(seconds))),
            "remaining_time": str(timedelta(seconds=round(left))),
        }
        if tokens is not None:
            line |= {"throughput": round(figures.tokens / figures.seconds, 2)}
            line |= {"total_tokens": tokens}
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
