"""engine/step_overhead: what a decode step costs besides its kernels.

The engine runs in this process. Every native call goes through a clock, and what is left of the
step's wall time is overhead.
"""

import random
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.cache import CacheConfig
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from inlay.engine import Engine, EngineConfig
from inlay.kernels import _backend
from tests.support.tiny_models import make_tiny_model


class Clock:
    """Stands before the native module and adds up the time inside its functions."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.inside_s = 0.0

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._native, name)
        if isinstance(function, type) or not callable(function):
            return function

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            self.inside_s += time.perf_counter() - start
            return result

        setattr(self, name, timed)
        return timed


def measure(run: Run) -> Generator[Samples, None, None]:
    """One engine per model, one load per point."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "random"
        models = {"demo": None, "random": str(folder)}
        points = list(run.params("step_overhead_share"))
        for model in dict.fromkeys(params["model"] for params in points):
            if model == "random":
                make_tiny_model(folder, "qwen3_moe", dtype="bfloat16", **run.workload["random"])
            with clocked_engine(models[model]) as (engine, clock):
                for params in points:
                    if params["model"] == model:
                        shares = list(measure_point(run, engine, clock, params))
                        yield Samples(
                            name="step_overhead_share",
                            params=params,
                            values=shares,
                            seeds=run.seeds,
                        )


@contextmanager
def clocked_engine(model: str | None) -> Iterator[tuple[Engine, Clock]]:
    """An engine on the CPU whose native calls are timed."""
    clock = Clock(_backend.ops)
    with mock.patch.object(_backend, "ops", clock):
        engine = Engine(
            EngineConfig(
                model=model, device="cpu", load="whole", seed=0, cache=CacheConfig(pages=1000)
            )
        )
        try:
            yield engine, clock
        finally:
            engine.close()


def measure_point(
    run: Run, engine: Engine, clock: Clock, params: dict[str, Any]
) -> Iterator[float]:
    """The share of `steps` decode steps, once per repeat."""
    draw = random.Random(run.seeds[0])
    steps = run.workload["steps"]
    warm_up = 2 + params["batch"]  # prefills and first steps
    for number in range(params["batch"]):
        engine.add(
            GenerateRequest(
                request_id=str(number),
                prompt=pack_token_ids(
                    [draw.randrange(5, 400) for _ in range(run.workload["prompt_tokens"])]
                ),
                params=SamplingParams(
                    max_tokens=warm_up + steps * run.repeats + 1,
                    ignore_eos=True,
                    **run.workload["sampling"][params["sampling"]],
                ),
                arrival_s=0.0,
            )
        )
    for _ in range(warm_up):
        engine.step()
    for _ in range(run.repeats):
        clock.inside_s, start = 0.0, time.perf_counter()
        for _ in range(steps):
            engine.step()
        yield 1.0 - clock.inside_s / (time.perf_counter() - start)
    for number in range(params["batch"]):
        engine.cancel(str(number))
    engine.step()
