"""tune/end_to_end: whole steps of a LoRA run beside transformers and PEFT, and the losses of both.

Each side is a process of its own, which loads the same random model and waits; the two take turns,
a step each. Ours is `inlay.tune.train` with all that a step of it does; the peer is a plain loop of
forward, backward and AdamW. Both keep all activations. Every token has a loss, none is padding.
`peak_rss_mib` is the highest resident memory from the start of a process to that step.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.triples import Comparison, Samples
from benchmarks.tune.side import Spec
from inlay import kernels
from tests.support.tiny_models import make_tiny_model

NAMES = ("tokens_per_s", "peak_rss_mib")
ROOT = Path(__file__).parents[2]


def measure(run: Run) -> Generator[Comparison | Samples, None, None]:
    """One comparison per target and dtype, then the losses."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_tiny_model(
            folder / "model",
            "qwen3_moe",
            dtype="bfloat16",
            tokenizer="none",
            **run.workload["model"],
        )
        for number, params in enumerate(run.params(NAMES[0])):
            spec = spec_of(run, params, model, folder / f"run-{number}", "step")
            with trainers(spec) as (_, ours, label, theirs):
                for step in (ours, theirs):
                    for _ in range(run.workload["warm_steps"]):
                        step()
                yield Comparison(
                    name=NAMES,
                    params=params,
                    ours=lambda ours=ours: figures(ours()),
                    peers={label: lambda theirs=theirs: figures(theirs())},
                    seeds=run.seeds,
                )
        for params in run.params("loss_difference"):
            spec = spec_of(run, params, model, folder / "losses", "losses")
            yield Samples(
                name="loss_difference",
                params=params,
                values=[loss_difference(spec, params["steps"])],
                seeds=run.seeds,
            )


def spec_of(run: Run, params: Mapping[str, Any], model: Path, output: Path, rows: str) -> Spec:
    """The run of a point; rows are those that the workload names."""
    return Spec(
        model=str(model),
        lora_target=params["lora_target"],
        dtype=params["dtype"],
        rank=run.workload["lora_rank"],
        vocabulary=run.workload["model"]["vocab_size"],
        threads=kernels.num_threads(),
        seed=run.seeds[0],
        adapter=str(output / "adapter") if rows == "losses" else "",
        output=str(output),
        **run.workload[rows],
    )


Step = Callable[[], Mapping[str, float]]


@contextmanager
def trainers(spec: Spec) -> Iterator[tuple[str, Step, str, Step]]:
    """Both sides, loaded: label and step of ours, label and step of the peer."""
    with side("peft", spec) as (label, theirs), side("ours", spec) as (own, ours):
        yield own, ours, label, theirs


@contextmanager
def side(kind: str, spec: Spec) -> Iterator[tuple[str, Step]]:
    """A process that trains, and a call that has it do a step."""
    command = [sys.executable, "-m", "benchmarks.tune.side", kind, json.dumps(asdict(spec))]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        wanted, told = process.stdin, process.stdout

        def read() -> dict[str, Any]:
            line = told.readline()
            if not line:
                raise RuntimeError(f"the {kind} side of {spec.lora_target} ended")
            found: dict[str, Any] = json.loads(line)
            return found

        def step() -> dict[str, Any]:
            wanted.write("\n")
            wanted.flush()
            return read()

        try:
            yield read()["label"], step
        finally:
            process.kill()


def figures(of_step: Mapping[str, float]) -> dict[str, float]:
    """Those that are measured of what a side says."""
    return {name: of_step[name] for name in NAMES}


def loss_difference(spec: Spec, steps: int) -> float:
    """The largest difference of the two losses of a step, from the same matrices on."""
    with trainers(spec) as (_, ours, _, theirs):
        return max(abs(ours()["loss"] - theirs()["loss"]) for _ in range(steps))
