"""experts/plan_accuracy: what the plan says before, and what the engine does then.

Before each run of the engine the machine is measured as `inlay doctor --save` does it. Memory here
changes its speed within seconds, so decode is predicted with the bandwidth that was measured
between the engine's steps; all else is as a user's plan has it. Models are GGUF files, so weights
are packed into memory. Memory: what the process holds, clean pages of files left out, beside the
plan's for steps as long as the prompt and without its reserve for others.
"""

import tempfile
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Run
from benchmarks.models.gguf_folder import gguf_folder
from benchmarks.models.random_model import RandomModel
from benchmarks.models.rates import EngineRun, engine_run
from benchmarks.models.write_gguf import write_gguf
from benchmarks.triples import Samples
from inlay.core.hardware import Machine
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.core.offload import place
from inlay.core.roofline import parts_of
from inlay.serve.plan.machine import measure_machine
from inlay.serve.plan.make import decode_speed, prefill_speed
from inlay.serve.plan.model import PlannedModel, choose_formats

ONE = 1  # stream
PHASES = ("prefill", "decode")
PLAN = "what the plan said"


def measure(run: Run) -> Generator[Samples, None, None]:
    """One shape after the other."""
    for params in run.params("memory_error"):
        given = run.workload["shapes"][params["shape"]]
        model = RandomModel(params["shape"], run.seeds[0], num_hidden_layers=given["layers"])
        yield from of_shape(run, params, model, given)


def of_shape(
    run: Run, params: dict[str, Any], model: RandomModel, given: dict[str, Any]
) -> Generator[Samples, None, None]:
    """Predict and measure in turns."""
    predicted: dict[str, list[float]] = {phase: [] for phase in PHASES}
    measured: dict[str, list[float]] = {phase: [] for phase in PHASES}
    held: list[float] = []
    held_planned: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "weights.gguf"
        write_gguf(file, model, experts=given["experts"], rest=given["rest"])
        folder = gguf_folder(Path(name) / "model", file)
        shape = read_shape(folder)
        for _ in range(run.repeats):
            machine, _ = measure_machine()
            done = engine_run(run, folder, "auto", [ONE])
            expected, memory = plan(run, shape, machine, done)
            for phase in PHASES:
                predicted[phase].append(expected[phase])
                measured[phase].append(done.rates[ONE][f"{phase}_tokens_per_s"])
            held.append(done.held_bytes / 1e9)
            held_planned.append(memory / 1e9)
    for phase in PHASES:
        of_phase, real, plans = {**params, "phase": phase}, measured[phase], predicted[phase]
        spread = (max(real) - min(real)) / median(real)
        for name, values, limit in (
            ("tokens_per_s", real, (PLAN, plans)),
            ("relative_error", errors(plans, real), None),
            ("spread", [spread], None),
        ):
            yield Samples(name=name, params=of_phase, values=values, limit=limit, seeds=run.seeds)
    for name, values, limit in (
        ("held_gb", held, (PLAN, held_planned)),
        ("memory_error", errors(held_planned, held), None),
    ):
        yield Samples(name=name, params=params, values=values, limit=limit, seeds=run.seeds)


def errors(predicted: Sequence[float], measured: Sequence[float]) -> list[float]:
    """How far predictions are off, as shares of what was measured."""
    return [abs(one / other - 1) for one, other in zip(predicted, measured, strict=True)]


def plan(
    run: Run, shape: ModelShape, machine: Machine, done: EngineRun
) -> tuple[dict[str, float], float]:
    """Tokens/s of both phases, and bytes of memory."""
    prompt, output = run.workload["prompt_tokens"], run.workload["output_tokens"]
    planned = PlannedModel(name="random", origin="the benchmark", shape=shape)
    parts = parts_of(shape, choose_formats(planned, "auto", machine))
    placement = place(shape, parts, machine, kv_tokens=prompt + output, step_tokens=prompt)
    gbs = done.rates[ONE]["decode_read_gbs"]
    nodes = tuple(replace(node, bandwidth_gbs=gbs / len(machine.nodes)) for node in machine.nodes)
    meanwhile = replace(machine, nodes=nodes)
    context = prompt + output // 2
    return {
        "prefill": prefill_speed(shape, parts, machine, placement, prompt, prompt).tokens_per_s,
        "decode": decode_speed(shape, parts, meanwhile, placement, context).tokens_per_s,
    }, placement.uses[0].held_bytes
