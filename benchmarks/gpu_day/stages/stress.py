"""What goes wrong rarely: experts that move while steps are recorded, no memory left, a peer that
is killed, adapters beside each other.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import inlay.models
from benchmarks.case import Run
from benchmarks.experts.on_gpu import Way, model_of, new_engine, serve
from benchmarks.gpu_day.stage import Context
from benchmarks.gpu_day.write_model import SHAPE, SMALL_LAYERS, model_folder, the_run
from inlay.core.messages import SamplingParams
from inlay.engine import Engine, EngineConfig
from tests.support.cuda import build_standin
from tests.support.tuning import make_adapter

CASES = "tests/integration/transfer/cuda_cases.py"
RECORDED = (1, 2, 4, 8, 16)
"""Streams, each of which makes a recording."""
MOVES = "8GiB"
LEFT_BYTES = 32 << 20
HUNGRY_PROMPT = 4096
ADAPTED_ROWS = 20
DEMO = Path(inlay.models.__file__).parent / "demo"


def run(context: Context) -> None:
    """One after the other; what needs a GPU is left out of a rehearsal."""
    with context.checking("a peer of CUDA IPC is killed"):
        killed_peer(context)
    with context.checking(f"an adapter on {ADAPTED_ROWS} rows gives what it gives on the CPU"):
        adapters(context)
    with context.checking("memory runs out, and there is some again"):
        memory_runs_out(context)
    with context.checking("experts move while steps are recorded"):
        moves_beside_recordings(context)


def killed_peer(context: Context) -> None:
    """The tests' own cases; in a rehearsal with the stand-in for the CUDA driver."""
    environment = dict(os.environ)
    if context.rehearsal:
        environment["LD_LIBRARY_PATH"] = str(build_standin(context.folder("standin")))
    command = [
        sys.executable, "-m", "pytest", "-q", "-W", "default", "-p", "no:cacheprovider",
        "--full", CASES, "-k", "killed or ends",
    ]  # fmt: skip
    limit_s = min(60.0, context.seconds_left() - 5)
    status = subprocess.run(command, env=environment, timeout=limit_s, check=False).returncode
    assert status == 0, f"pytest ended with status {status}: see the log"


def adapters(context: Context) -> None:
    """Log probabilities of prompts' tokens, all rows in one batch."""
    folder = context.work / "adapter"
    if not folder.exists():
        make_adapter(DEMO, folder)
    found, wanted = (likely(device, folder) for device in (context.device, "cpu"))
    error = float(np.abs(found - wanted).mean())
    context.fact("mean difference of log probabilities under an adapter", round(error, 5))
    assert error < 0.2, f"they differ by {error:.3f} on average"


def likely(device: str, adapter: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Log probabilities under the adapter on a device, in bfloat16."""
    config = EngineConfig(
        model=str(DEMO),
        device=device,
        weight_format="bfloat16",
        adapters=(f"voice={adapter}",),
        load="whole",
    )
    prompts = [f"Define lantern. {number}" for number in range(ADAPTED_ROWS)]
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with closing(Engine(config)) as engine:
        answers = engine.generate(prompts, params, adapter="voice")
    return np.array([one.logprob for a in answers for one in a.prompt_logprobs or () if one])


def memory_runs_out(context: Context) -> None:
    """Nearly all memory is taken while a long prompt comes; after that all is as before."""
    if context.rehearsal:
        context.left_out("memory runs out", "the host's is not taken away in a rehearsal")
        return
    way = Way(SHAPE, 12, 0.5, "auto", "0", 512)
    points = [{"streams": 1, "prompt": HUNGRY_PROMPT}, {"streams": 4, "prompt": 64}]
    with engine_of(context, the_run(False), way, points, 12) as engine:
        serve(engine, "before", 4, 64, 8)
        taken = take_memory(context.device)
        said: list[str] = []
        with warnings_to(said):
            serve(engine, "hungry", 1, HUNGRY_PROMPT, 4)
        context.fact("said when memory ran out", said)
        if not said:
            context.left_out("memory runs out", f"{LEFT_BYTES >> 20} MiB were enough")
        taken.clear()
        torch.cuda.empty_cache()
        served = serve(engine, "after", 4, 64, 8)
        assert len(served.steps_s) == 8


def take_memory(device: str) -> list[torch.Tensor]:
    """Tensors that leave little of a GPU's memory."""
    taken = []
    torch.cuda.empty_cache()
    while (left := torch.cuda.mem_get_info(device)[0] - LEFT_BYTES) > 1 << 20:
        try:
            taken.append(torch.empty(min(left, 8 << 30), dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            break
    return taken


def moves_beside_recordings(context: Context) -> None:
    """With more layers that keep experts than PyTorch has streams."""
    layers = SMALL_LAYERS if context.rehearsal else 48
    of_case = the_run(context.rehearsal)
    settings = [f"experts.moves={MOVES}"]
    workload = {**of_case.case.workload, "settings": settings}
    of_case = replace(of_case, case=replace(of_case.case, workload=workload))
    way = Way(SHAPE, layers, 0.5, "auto", "0", 512)
    points = [{"streams": streams, "prompt": 16} for streams in RECORDED]
    said: list[str] = []
    with engine_of(context, of_case, way, points, 48) as engine, warnings_to(said):
        for streams in RECORDED:
            context.need(5, f"{streams} streams")
            serve(engine, f"moving-{streams}", streams, 16, 12)
        moved = engine.stats().experts_moved
    context.fact("experts moved while steps were recorded", moved)
    assert not said, f"it warned: {said[:5]}"
    if context.rehearsal:
        context.left_out("experts move", "a CPU keeps none of them anywhere else")
    else:
        assert moved > 0, "no expert moved"


@contextmanager
def engine_of(
    context: Context, of_case: Run, way: Way, points: list[dict[str, int]], model: int
) -> Iterator[Engine]:
    """On the model with so many layers that a job wrote."""
    folder = model_folder(context.work, model)
    shape = model_of(of_case, SHAPE, way.layers).shape
    with closing(new_engine(of_case, way, points, shape, folder, context.device)) as engine:
        yield engine


@contextmanager
def warnings_to(said: list[str]) -> Iterator[None]:
    """Gather what Inlay warns of."""

    class Gather(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Gather(logging.WARNING)
    logging.getLogger("inlay").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("inlay").removeHandler(handler)
