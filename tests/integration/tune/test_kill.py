"""Runs that are killed in the middle of a step go on, and end with the same losses."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from inlay.tune import TuneData, train
from tests.support.tiny_models import make_tiny_model
from tests.support.tree import ROOT
from tests.support.tuning import random_rows, settings

_RUN = """
import sys
from pathlib import Path
import torch
from inlay import kernels
from inlay.tune import TuneData, train
from tests.support.tuning import random_rows, settings

class Tell:
    def on_step(self, figures):
        print(figures.step, flush=True)
        if figures.step > last:
            sys.stdin.read()

torch.set_num_threads(1)
kernels.set_num_threads(1)
model, output = map(Path, sys.argv[1:3])
last = int(sys.argv[3])
config = settings(model, output, **{options})
train(config, TuneData(random_rows(8), None, ()), watchers=(Tell(),))
"""
OPTIONS = {"num_train_epochs": 3.0, "save_steps": 2, "lora_dropout": 0.1, "seed": 5}


def log_of(output: Path) -> list[dict[str, float]]:
    log: list[dict[str, float]] = json.loads((output / "trainer_state.json").read_text())[
        "log_history"
    ]
    return log


def started(
    model: Path, output: Path, options: dict[str, Any], last: int
) -> "subprocess.Popen[str]":
    """A process that trains, or goes on, and prints the number of each step that is done.

    It stands still behind the step after the last, so that it does not end by itself.
    """
    script = _RUN.replace("{options}", repr(options))
    return subprocess.Popen(
        [sys.executable, "-c", script, str(model), str(output), str(last)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def run_and_kill(model: Path, output: Path, at: int) -> None:
    """Kill the process once it has done a step: it is within the next one, or saving."""
    with started(model, output, OPTIONS, at) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= at:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL


def test_killed_runs_end_with_the_same_losses(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", "qwen3_moe", num_hidden_layers=1)
    data = TuneData(random_rows(8), None, ())
    train(settings(model, tmp_path / "whole", **OPTIONS), data)
    output = tmp_path / "killed"
    for at in (3, 8):
        run_and_kill(model, output, at)
    lines: list[str] = []
    train(settings(model, output, **OPTIONS), data, say=lines.append)
    assert any(line.startswith("going on from checkpoint-") for line in lines)
    assert log_of(output) == log_of(tmp_path / "whole")
    assert not list(output.glob(".*"))
