"""models/real_speed: published GGUF files on the engine, beside llama.cpp with as many threads.

Both read the same file and take turns; nothing else is in memory. Ours chooses tokens, llama.cpp
does not.
"""

import sys
from collections import defaultdict
from collections.abc import Generator, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.models.rates import NAMES, Rates, json_lines
from benchmarks.serving.llama_cpp import ENVIRONMENT, label
from benchmarks.triples import Samples
from inlay import kernels
from tests.real.files import fetch_real_model

HERE = Path(__file__).parent


def measure(run: Run) -> Generator[Samples, None, None]:
    """Each file with each length of prompts; all numbers of streams in one process."""
    points = list(run.params(NAMES[0]))
    peer = peers.environment(run.peers, ENVIRONMENT)
    for model, prompt in dict.fromkeys((p["model"], p["prompt_tokens"]) for p in points):
        file = fetch_real_model(model)
        streams = [
            p["streams"] for p in points if (p["model"], p["prompt_tokens"]) == (model, prompt)
        ]
        ours: list[Rates] = []
        theirs: dict[str, list[Rates]] = defaultdict(list)
        long = prompt == run.workload["long_prompt_tokens"]
        for _ in range(1 if long else run.repeats):
            ours.append(engine_rates(run, file, prompt, streams))
            if peer is not None:
                theirs[label(peer)].append(llama_rates(run, peer, file, prompt, streams))
        for count in streams:
            for name in NAMES:
                yield Samples(
                    name=name,
                    params={"model": model, "prompt_tokens": prompt, "streams": count},
                    values=[rates[count][name] for rates in ours],
                    peers={
                        who: [rates[count][name] for rates in runs] for who, runs in theirs.items()
                    },
                    seeds=run.seeds,
                )


def engine_rates(run: Run, file: Path, prompt_tokens: int, streams: Sequence[int]) -> Rates:
    """Ours, with the defaults of `inlay serve`."""
    *rows, _ = json_lines([
        sys.executable, "-m", "benchmarks.models.engine_rates", str(file), "auto",
        str(prompt_tokens), str(run.workload["output_tokens"]), *map(str, streams),
    ])  # fmt: skip
    return {row.pop("batch"): row for row in rows}


def llama_rates(
    run: Run, environment: Path, file: Path, prompt_tokens: int, streams: Sequence[int]
) -> Rates:
    """The peer."""
    rows = json_lines([
        str(environment / "bin" / "python"), str(HERE / "llama_streams.py"), str(file),
        str(kernels.num_threads()), str(prompt_tokens), str(run.workload["output_tokens"]),
        *map(str, streams),
    ])  # fmt: skip
    return {row.pop("streams"): row for row in rows}
