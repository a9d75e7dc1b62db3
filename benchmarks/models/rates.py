"""Prefill and decode rates of whole models: the engine's and llama.cpp's, each in its process."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.models.random_model import RandomModel
from benchmarks.models.write_gguf import write_gguf
from inlay import kernels
from inlay.core.model_shape import ModelShape
from inlay.core.roofline import Formats, Step, parts_of, work_of
from inlay.models.formats import full_name, part_formats

LLAMA = "llama.cpp"  # the environment
LLAMA_BENCH = "build/bin/llama-batched-bench"
NAMES = ("prefill_tokens_per_s", "decode_tokens_per_s")
DECODE_LIMIT = "DRAM reads of the touched weights"

Rates = dict[int, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class EngineRun:
    """What `engine_rates.py` prints.

    Attributes:
        rates: by batch.
        load_s: until the engine could serve.
        held_bytes: memory at the end, clean pages of files other than the weights left out.
        peak_rss_bytes: with everything.
    """

    rates: Rates
    load_s: float
    held_bytes: int
    peak_rss_bytes: int


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """One form of the model for the peer.

    Attributes:
        batches: those that it is measured with; empty for all.
    """

    label: str
    file: Path
    batches: list[int]


def engine_run(
    run: Run,
    model: Path,
    weight_format: str,
    batches: Sequence[int],
    settings: Sequence[str] = (),
) -> EngineRun:
    """Ours; `settings` of the engine, as `--set` takes them."""
    command = [
        sys.executable, "-m", "benchmarks.models.engine_rates", str(model), weight_format,
        str(run.workload["prompt_tokens"]), str(run.workload["output_tokens"]),
        *map(str, batches), *settings,
    ]  # fmt: skip
    *rows, about = json_lines(command)
    return EngineRun(rates={row.pop("batch"): row for row in rows}, **about)


def llama_rates(
    run: Run,
    file: Path,
    batches: Sequence[int],
    environment: str = LLAMA,
    options: Sequence[str] = (),
) -> Rates:
    """The peer: what its own `llama-batched-bench` prints, by batch."""
    prompt, output = run.workload["prompt_tokens"], run.workload["output_tokens"]
    folder = peers.environment(run.peers, environment)
    command = [
        f"{folder}/{LLAMA_BENCH}", "-m", str(file),
        "-c", str(max(batches) * (prompt + output)), "-npp", str(prompt), "-ntg", str(output),
        "-npl", ",".join(map(str, batches)), "-t", str(kernels.num_threads()),
        "--output-format", "jsonl", *options,
    ]  # fmt: skip
    return {
        row["pl"]: dict(zip(NAMES, (row["speed_pp"], row["speed_tg"]), strict=True))
        for row in json_lines(command)
    }


def llama_label(run: Run, experts: str, rest: str, environment: str = LLAMA) -> str | None:
    """What the peer is called with matrices of these types; None if it is not there."""
    llama = peers.environment(run.peers, environment)
    if llama is None:
        return None
    if not (llama / LLAMA_BENCH).is_file():
        print(f"peer left out: {llama / LLAMA_BENCH} is not built", file=sys.stderr)
        return None
    version = (llama / "version").read_text().strip()
    types = experts if experts == rest else f"{experts} experts, {rest} rest"
    return f"{environment} ({version}) {types}"


def write_ggufs(
    run: Run, folder: Path, model: RandomModel, forms: Sequence[dict[str, Any]]
) -> list[Gguf]:
    """The model in every form for the peer; none if it is not there."""
    files = []
    for form in () if run.quick else forms:
        experts, rest = form["experts"], form["rest"]
        label = llama_label(run, experts, rest)
        if label is None:
            break
        file = folder / f"{experts}-{rest}.gguf"
        write_gguf(file, model, experts=experts, rest=rest)
        files.append(Gguf(label=label, file=file, batches=form.get("batches", [])))
    return files


def step_bytes(shape: ModelShape, weight_format: str, batch: int, context: int) -> float:
    """Bytes that a decode step reads, by `inlay.core.roofline`.

    Tokens that choose at random touch a share of `1 - (1 - top_k / experts) ^ batch` of a layer's
    experts; random weights come near that.
    """
    held = part_formats(shape, full_name(weight_format), "bfloat16")
    formats = Formats(
        experts=held.experts, mlp=held.mlp, attention=held.attention, latent=held.latent,
        router=held.router, head=held.head,
    )  # fmt: skip
    step = Step(new_tokens=1, cached_tokens=context, requests=batch)
    return sum(work_of(shape, part, step).read_bytes for part in parts_of(shape, formats))


def decode_limit(
    run: Run, shape: ModelShape, weight_format: str, batch: int, rates: Sequence[Rates]
) -> tuple[str, list[float]]:
    """Tokens per second if a step took what reading its bytes took at the same time."""
    context = run.workload["prompt_tokens"] + run.workload["output_tokens"] // 2
    read = step_bytes(shape, weight_format, batch, context)
    return DECODE_LIMIT, [batch * one[batch]["decode_read_gbs"] * 1e9 / read for one in rates]


def json_lines(command: Sequence[str]) -> list[dict[str, Any]]:
    """The JSON objects that a program prints, one a line, besides anything else it says.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {(done.stdout + done.stderr)[-2000:]}")
    lines = (line for line in done.stdout.splitlines() if line.startswith("{"))
    return [json.loads(line) for line in lines]
