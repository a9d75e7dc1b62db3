"""Training under faults at random moments: each time it goes on, and ends with the same losses.

python -m tests.integration.tune.faults RECORD.json [RUNS [SEED [FAULT...]]]

Each run is `inlay tune train` as a process of its own. It is faulted once or several times, and
then the same command is given without a fault. Its log has to be that of a run without any.
"""

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.support.fault_runs import Outcome, repeat
from tests.support.tiny_models import make_tiny_model

TUNE = [sys.executable, "-c", "from inlay.serve.cli import main; main()", "tune", "train"]
RUN_S = 300
STEPS = 24
WORDS = "lamp ship rope star salt wind bell oar tide moon".split()
# What runs have in common, and what each kind has beside it.
COMMON: dict[str, Any] = {
    "dataset": "words",
    "template": "default",
    "logging_steps": 1,
    "max_steps": STEPS,
    "learning_rate": 1e-2,
    "lora_rank": 4,
    "use_cpu": True,
    "cpu_infer": 1,
    "seed": 5,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dropout": ("qwen3_moe", {"save_steps": 2, "lora_dropout": 0.1}),
    "int8": (
        "deepseek_v2",
        {
            "save_steps": 3, "bf16": True, "weight_format": "int8", "save_total_limit": 2,
            "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2,
        },
    ),
    "bf16 states": (
        "qwen3_moe",
        {
            "save_steps": 5, "pure_bf16": True, "kt_cpu_activation": "retain", "packing": True,
            "cutoff_len": 48, "per_device_train_batch_size": 1, "val_size": 0.2,
            "eval_strategy": "steps", "eval_steps": 4, "logging_steps": 3,
        },
    ),
}  # fmt: skip


@dataclass
class Kind:
    """A kind of run: its file, where it writes, and the log of one without a fault."""

    file: Path
    output: Path
    log: list[dict[str, float]]


class Faulted:
    """Runs of all kinds in a folder."""

    def __init__(self, folder: Path) -> None:
        self._kinds = []
        write_data(folder / "data")
        for name, (architecture, options) in KINDS.items():
            model = folder / architecture
            if not model.exists():
                make_tiny_model(model, architecture, num_hidden_layers=2)
            file, output = folder / f"{name}.yaml", folder / name
            given = COMMON | options | {"model_name_or_path": str(model)}
            given |= {"dataset_dir": str(folder / "data"), "output_dir": str(output)}
            file.write_text(yaml.safe_dump(given))
            ended, said = started(file).end()
            assert ended == 0, said
            self._kinds.append(Kind(file, output, log_of(output)))
            shutil.rmtree(output)

    def run(self, fault: str, seed: int) -> Outcome:
        """Fault a run, let it go on, and compare its log.

        Returns:
            Faults that it had, and steps that were computed more than once for them.
        """
        draw = random.Random(seed)
        kind = draw.choice(self._kinds)
        computed = faults = 0
        for _ in range(draw.randint(1, 3)):
            before = steps_of(kind.output)
            computed += FAULTS[fault](kind, draw)
            faults += 1
            if steps_of(kind.output) == STEPS and before < STEPS and finished(kind.output):
                break
        code, said = started(kind.file).end()
        assert code == 0, f"it did not go on ({code}): {said}"
        assert log_of(kind.output) == kind.log, f"the log is another one; it said: {said}"
        left = [one.name for one in kind.output.iterdir() if one.name.startswith(".")]
        assert not left, f"left behind: {left}"
        shutil.rmtree(kind.output)
        return {"faults": faults, "steps_lost": computed}


class Started:
    """A process that trains."""

    def __init__(self, file: Path) -> None:
        self._log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*TUNE, str(file)], stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL
        )

    def after(self, output: Path, lines: int, late_s: float) -> bool:
        """Wait until its log has so many lines, and a little; whether it still runs."""
        end_s = time.monotonic() + RUN_S
        while self.process.poll() is None and lines_of(output) < lines:
            assert time.monotonic() < end_s, "it computes no further"
            time.sleep(0.002)
        time.sleep(late_s)
        return self.process.poll() is None

    def end(self) -> tuple[int, str]:
        """Wait for its end; its code, and what it said."""
        try:
            code = self.process.wait(RUN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._log.seek(0)
        said = self._log.read()
        self._log.close()
        return code, said


def started(file: Path) -> Started:
    """Begin a run, or go on with it."""
    return Started(file)


def kill(kind: Kind, draw: random.Random) -> int:
    """kill -9 anywhere: while it loads, in a step, while it saves."""
    run = started(kind.file)
    if draw.random() < 0.2:
        time.sleep(draw.uniform(0, 3))
    else:
        run.after(kind.output, draw.randint(1, STEPS), draw.uniform(0, 0.1))
    run.process.kill()
    code, said = run.end()
    assert code in (0, -signal.SIGKILL), said
    return lines_of(kind.output) - steps_of(kind.output)


def full_disk(kind: Kind, draw: random.Random) -> int:
    """From some moment on no file may grow beyond a size, as on a disk without room."""
    run = started(kind.file)
    if run.after(kind.output, draw.randint(1, STEPS - 2), draw.uniform(0, 0.05)):
        limit = round(10 ** draw.uniform(2, 5.5))
        try:
            resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        except ProcessLookupError:
            pass  # it has just ended
    code, said = run.end()
    assert code == 0 or "Traceback" not in said, said
    return lines_of(kind.output) - steps_of(kind.output)


def damage(kind: Kind, draw: random.Random) -> int:
    """kill -9, and then a file of the newest checkpoint is not what it was."""
    lost = kill(kind, draw)
    newest = max(checkpoints(kind.output), key=step_of, default=None)
    if newest is not None and not finished(kind.output):
        file = draw.choice(sorted(newest.iterdir()))
        content = bytearray(file.read_bytes())
        way = draw.choice(("flip", "cut", "empty", "remove"))
        if way == "remove":
            file.unlink()
        elif way == "empty":
            file.write_bytes(b"")
        elif way == "cut":
            file.write_bytes(content[: draw.randrange(len(content))])
        else:
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            file.write_bytes(content)
    return lost


def interrupt(kind: Kind, draw: random.Random) -> int:
    """Ctrl-C, and sometimes a second one."""
    run = started(kind.file)
    if run.after(kind.output, draw.randint(1, STEPS), draw.uniform(0, 0.1)):
        run.process.send_signal(signal.SIGINT)
        if draw.random() < 0.2:
            time.sleep(draw.uniform(0, 0.05))
            run.process.send_signal(signal.SIGINT)
    code, said = run.end()
    assert code in (0, 130, -signal.SIGINT), f"{code}: {said}"
    return lines_of(kind.output) - steps_of(kind.output)


FAULTS: dict[str, Callable[[Kind, random.Random], int]] = {
    "kill": kill,
    "full disk": full_disk,
    "damage": damage,
    "interrupt": interrupt,
}


def write_data(folder: Path) -> None:
    """Some short questions and answers."""
    folder.mkdir()
    draw = random.Random(1)
    rows = [
        {"instruction": f"Say {one}.", "output": " ".join(draw.choices(WORDS, k=4))}
        for one in WORDS * 2
    ]
    (folder / "words.json").write_text(json.dumps(rows))
    (folder / "dataset_info.json").write_text('{"words": {"file_name": "words.json"}}')


def log_of(output: Path) -> list[dict[str, float]]:
    """What a run that has ended logged."""
    found: list[dict[str, float]] = json.loads((output / "trainer_state.json").read_text())[
        "log_history"
    ]
    return found


def finished(output: Path) -> bool:
    """Whether the run has written what it ends with."""
    return (output / "trainer_state.json").is_file()


def lines_of(output: Path) -> int:
    """The last step that the growing log tells of."""
    file = output / "trainer_log.jsonl"
    lines = file.read_text("utf-8", errors="replace").splitlines() if file.is_file() else []
    for line in reversed(lines):
        try:
            return int(json.loads(line)["current_steps"])
        except (ValueError, KeyError, TypeError):
            continue
    return 0


def checkpoints(output: Path) -> list[Path]:
    """All that are there as a whole."""
    return [one for one in output.glob("checkpoint-*") if one.is_dir()]


def step_of(checkpoint: Path) -> int:
    """After which step it was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def steps_of(output: Path) -> int:
    """Steps that the newest checkpoint holds."""
    return max(map(step_of, checkpoints(output)), default=0)


@contextmanager
def _once(fault: str) -> Iterator[Callable[[int], Outcome]]:
    """Runs of their own for each fault."""
    with tempfile.TemporaryDirectory() as folder:
        faulted = Faulted(Path(folder))
        yield lambda seed: faulted.run(fault, seed)


def main() -> None:
    """Each fault so many times; the record is written after each."""
    record = Path(sys.argv[1])
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    seeds = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else None)
    found: list[dict[str, object]] = []
    for fault in sys.argv[4:] or FAULTS:
        found.append(repeat(fault, _once(fault), runs, seeds))
        record.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(not all(one["passed"] for one in found))


if __name__ == "__main__":
    main()
