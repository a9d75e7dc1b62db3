"""What a stage is given, and where it says what it found.

Rows go to a file, one JSON object a line, as soon as they are known: what a stage measured before
it hangs is kept.
"""

import json
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.gpu_day.results import sample_key
from benchmarks.triples import Samples


class CannotRunError(Exception):
    """What a stage needs is not here; the message says what."""


class OutOfTimeError(Exception):
    """Too little is left of a stage's seconds for what comes next; the message names that."""


class Context:
    """One stage's.

    Args:
        rows: the file that rows go to.
        seconds: from now on, the stage's limit.
        device: `cuda:0`, or `cpu` in a rehearsal.
        work: a folder that outlives the stage, with `models`, `traces` and `peers`.
        measured: keys (`sample_key`) of points that an earlier call measured.
    """

    def __init__(
        self,
        rows: Path,
        seconds: float,
        device: str,
        work: Path,
        measured: frozenset[str] = frozenset(),
    ) -> None:
        self._rows, self._deadline_s = rows, time.monotonic() + seconds
        self.device, self.work, self._measured = device, work, measured
        self.failed = False

    @property
    def rehearsal(self) -> bool:
        """No GPU: sizes are small, and figures mean nothing."""
        return self.device == "cpu"

    def seconds_left(self) -> float:
        """Until the stage is ended."""
        return self._deadline_s - time.monotonic()

    def need(self, seconds: float, what: str) -> None:
        """Go on only if so much is left.

        Raises:
            OutOfTimeError: it is not.
        """
        if self.seconds_left() < seconds:
            raise OutOfTimeError(f"{self.seconds_left():.0f} s were left before {what}")

    def fact(self, name: str, value: Any) -> None:
        """Say something of the machine, or a figure that no case declares."""
        self.say({"fact": {"name": name, "value": value}})

    def check(self, name: str, passed: bool, detail: str = "") -> None:
        """Say whether something is as it must be; one that is not fails the stage in the end."""
        self.failed |= not passed
        self.say({"check": {"name": name, "passed": passed, "detail": detail}})

    @contextmanager
    def checking(self, name: str) -> Iterator[None]:
        """A block that must not raise; what comes after it runs in any case.

        Raises:
            CannotRunError, OutOfTimeError: from the block.
        """
        try:
            yield
        except (CannotRunError, OutOfTimeError):
            raise
        except Exception as error:
            traceback.print_exc()
            self.check(name, False, f"{type(error).__name__}: {error}"[:1000])
        else:
            self.check(name, True)

    def left_out(self, what: str, why: str) -> None:
        """Say that a part of the stage was not run."""
        self.say({"left_out": {"what": what, "why": why}})

    def samples(self, case: str, samples: Samples) -> None:
        """Say what was measured of a benchmark case."""
        limit = list(samples.limit) if samples.limit else None
        self.say(
            {
                "samples": {
                    "case": case,
                    "name": samples.name,
                    "params": dict(samples.params),
                    "values": list(samples.values),
                    "limit": limit,
                    "peers": {label: list(values) for label, values in samples.peers.items()},
                    "seeds": list(samples.seeds),
                }
            }
        )

    def peer(
        self, *, label: str, layers: int, gpu_share: float, rates: dict[int, dict[str, float]]
    ) -> None:
        """Say what another program did on the file of experts/on_gpu, by number of streams."""
        self.say(
            {"peer": {"label": label, "layers": layers, "gpu_share": gpu_share, "rates": rates}}
        )

    def is_measured(self, case: str, name: str, params: dict[str, Any]) -> bool:
        """Whether an earlier call measured this point."""
        return sample_key(case, name, params) in self._measured

    def machine(self, *packages: str) -> None:
        """Say where samples are taken, as records do."""
        from benchmarks import machine

        versions = machine.versions(*packages)
        self.say({"machine": {"machine": machine.machine(), "versions": versions}})

    def folder(self, name: str) -> Path:
        """One of the work folder's."""
        folder = self.work / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def say(self, row: dict[str, Any]) -> None:
        """A row of any kind, by the name of its only key."""
        line = json.dumps(row)
        print(line, flush=True)
        with self._rows.open("a") as file:
            file.write(line + "\n")
