"""How a run goes, for people: a bar on a terminal, else a line every few seconds."""

import time
from types import TracebackType
from typing import Self

import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from inlay.core.units import format_bytes
from inlay.tune.trainer import StepFigures

_EVERY_S = 5.0


class RunProgress:
    """A `Watcher`, and a context manager; `say` is for lines that do not belong to a step."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._process = psutil.Process()
        self._said_at = -_EVERY_S
        self._bar: Progress | None = None
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[figures]}"),
                console=self._console,
            )
            self._task = self._bar.add_task("training", total=None, figures="")

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def say(self, line: str) -> None:
        """A line above the bar."""
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

    def on_step(self, figures: StepFigures) -> None:
        """After a step."""
        shown = (
            f"loss {figures.loss:.4f}  lr {figures.learning_rate:.2e}  "
            f"{figures.tokens / figures.seconds:.0f} tokens/s  "
            f"{format_bytes(self._process.memory_info().rss)}"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=figures.step, total=figures.total, figures=shown)
            return
        now = time.monotonic()
        if now - self._said_at >= _EVERY_S or figures.step == figures.total:
            self._said_at = now
            left = (figures.total - figures.step) * figures.seconds
            self.say(f"step {figures.step} of {figures.total}  {shown}  about {left:.0f} s left")
