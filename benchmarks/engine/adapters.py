"""engine/adapters: what adapters cost a decode step in which each request may have another one.

Two engines on one model take turns: one batch without adapters, which is the limit, and one in
which request n has adapter n modulo their number.
"""

import random
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay.cache import CacheConfig
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from inlay.engine import Engine, EngineConfig
from inlay.engine.loading import prepare
from inlay.models import Model, load_model
from inlay.models.source import resolve_model
from inlay.models.text import Text
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter


def measure(run: Run) -> Generator[Samples, None, None]:
    """One load per model."""
    points = list(run.params("decode_tokens_per_s"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in dict.fromkeys(params["model"] for params in points):
            directory = _directory(run, kind, folder)
            model, text = load_model(directory, device="cpu"), Text.load(directory)
            of_model = [params for params in points if params["model"] == kind]
            most = max(params["adapters"] for params in of_model)
            paths = [
                make_adapter(
                    directory, folder / f"{kind}-{n}", rank=run.workload["lora_rank"], seed=n
                )
                for n in range(most)
            ]
            for params in of_model:
                with (
                    _engine(model, text, directory, paths[: params["adapters"]]) as ours,
                    _engine(model, text, directory, []) as base,
                ):
                    rates, limits = _rates(run, ours, base)
                yield Samples(
                    name="decode_tokens_per_s",
                    params=params,
                    values=rates,
                    limit=("no adapters", limits),
                    seeds=run.seeds,
                )


def _directory(run: Run, kind: str, folder: Path) -> Path:
    if kind == "demo":
        return resolve_model(None).directory
    return make_tiny_model(folder / kind, "qwen3_moe", dtype="bfloat16", **run.workload["random"])


@contextmanager
def _engine(
    model: Model, text: Text, directory: Path, paths: list[Path]
) -> Generator[Engine, None, None]:
    config = EngineConfig(
        model=str(directory),
        device="cpu",
        seed=0,
        cache=CacheConfig(pages=1000),
        adapters=tuple(f"{n}={path}" for n, path in enumerate(paths)),
    )
    engine = Engine(config, loaded=prepare(config, "benchmark", model, text))
    try:
        yield engine
    finally:
        engine.close()


def _rates(run: Run, ours: Engine, base: Engine) -> tuple[list[float], list[float]]:
    """Tokens per second of both in turns, the order turning, too."""
    batch, steps = run.workload["batch"], run.workload["steps"]
    warm_up = 2 + batch
    for engine in (ours, base):
        _fill(run, engine, warm_up + steps * run.repeats + 1)
        for _ in range(warm_up):
            engine.step()
    rates: dict[Engine, list[float]] = {ours: [], base: []}
    order: list[Engine] = [base, ours]
    for _ in range(run.repeats):
        for engine in order:
            start = time.perf_counter()
            for _ in range(steps):
                engine.step()
            rates[engine].append(batch * steps / (time.perf_counter() - start))
        order.reverse()
    return rates[ours], rates[base]


def _fill(run: Run, engine: Engine, tokens: int) -> None:
    draw = random.Random(run.seeds[0])
    names: list[Any] = list(engine.adapters.fingerprints) or [""]
    for number in range(run.workload["batch"]):
        prompt = [draw.randrange(5, 400) for _ in range(run.workload["prompt_tokens"])]
        engine.add(
            GenerateRequest(
                request_id=str(number),
                prompt=pack_token_ids(prompt),
                params=SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True),
                arrival_s=0.0,
                adapter=names[number % len(names)],
            )
        )
