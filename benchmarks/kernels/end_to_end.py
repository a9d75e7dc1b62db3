"""kernels/end_to_end: whole random models in the shape of Qwen3-30B-A3B, ours and llama.cpp.

Both programs get the same weights, each quantised by its own side, and run one after the other, so
that only one model is in memory; they take turns `repeats` times. The models are written into the
temporary directory (TMPDIR names another one) and deleted after their format.
"""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.kernels.random_model import Size
from benchmarks.kernels.random_tensors import config
from benchmarks.kernels.write_packed import write_packed_model
from benchmarks.triples import Samples
from inlay import kernels
from inlay.core.model_config import shape_of
from inlay.models.formats import BYTES_PER_WEIGHT, part_formats

HERE = Path(__file__).parent
LLAMA_BENCH = "build/bin/llama-batched-bench"
NAMES = ("prefill_tokens_per_s", "decode_tokens_per_s")

Rates = dict[int, dict[str, float]]


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """One form of the model for the peer.

    Attributes:
        batches: those that it is measured with; empty for all.
    """

    label: str
    file: Path
    batches: list[int]


def measure(run: Run) -> Generator[Samples, None, None]:
    """One pair of models per format and number of layers."""
    points = list(run.params(NAMES[0]))
    for layers, weight_format in dict.fromkeys((p["layers"], p["format"]) for p in points):
        of_pair = [p for p in points if (p["layers"], p["format"]) == (layers, weight_format)]
        yield from measure_pair(run, layers, weight_format, of_pair)


def measure_pair(
    run: Run, layers: int, weight_format: str, points: Sequence[dict[str, Any]]
) -> list[Samples]:
    """Write both models, let the programs take turns, and sort their rates by batch."""
    size = Size(layers=layers, **run.workload["size"])
    batches = [point["batch"] for point in points]
    ours: list[Rates] = []
    theirs: dict[str, list[Rates]] = defaultdict(list)
    read_gbs: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_packed_model(folder / "model", size, run.seeds[0], weight_format)
        files = write_ggufs(run, folder, size, weight_format)
        for _ in range(run.repeats):
            before = kernels.measure_read_gbs()
            ours.append(engine_rates(run, folder / "model", weight_format, batches))
            read_gbs.append((before + kernels.measure_read_gbs()) / 2)
            for gguf in files:
                theirs[gguf.label].append(llama_rates(run, gguf.file, gguf.batches or batches))
    return [
        Samples(
            name=name,
            params=point,
            values=[rates[point["batch"]][name] for rates in ours],
            limit=decode_limit(size, weight_format, point["batch"], read_gbs)
            if name == "decode_tokens_per_s"
            else None,
            peers={
                label: [rates[point["batch"]][name] for rates in runs]
                for label, runs in theirs.items()
                if point["batch"] in runs[0]
            },
            seeds=run.seeds,
        )
        for point in points
        for name in NAMES
    ]


def decode_limit(
    size: Size, weight_format: str, batch: int, read_gbs: Sequence[float]
) -> tuple[str, list[float]]:
    """Tokens per second if a step took what reading its weights from DRAM takes."""
    step_bytes = touched_bytes(size, weight_format, batch)
    return "DRAM reads of the touched weights", [batch * gbs * 1e9 / step_bytes for gbs in read_gbs]


def touched_bytes(size: Size, weight_format: str, batch: int) -> float:
    """Bytes of the matrices that a decode step reads: attention, head, and the experts chosen.

    `batch` tokens that choose at random touch a share of `1 - (1 - top_k / experts) ^ batch` of a
    layer's experts; random weights come near that. The KV cache and norms are left out.
    """
    formats = part_formats(shape_of(config(size)), weight_format, "bfloat16")
    touched = size.experts * (1 - (1 - size.top_k / size.experts) ** batch)
    attention = 2 * (size.heads + size.kv_heads) * size.head_dim * size.hidden
    layer = (
        touched * 3 * size.hidden * size.intermediate * BYTES_PER_WEIGHT[formats.mlp]
        + attention * BYTES_PER_WEIGHT[formats.attention]
        + size.experts * size.hidden * BYTES_PER_WEIGHT[formats.router]
    )
    return size.layers * layer + size.vocab * size.hidden * BYTES_PER_WEIGHT[formats.head]


def engine_rates(run: Run, model: Path, weight_format: str, batches: Sequence[int]) -> Rates:
    """Ours: what `engine_rates.py` prints, by batch."""
    command = [
        sys.executable, "-m", "benchmarks.kernels.engine_rates", str(model), weight_format,
        str(run.workload["prompt_tokens"]), str(run.workload["output_tokens"]),
        *map(str, batches),
    ]  # fmt: skip
    rows = json_lines(command)
    return {row["batch"]: {name: row[name] for name in NAMES} for row in rows}


def llama_rates(run: Run, file: Path, batches: Sequence[int]) -> Rates:
    """The peer: what its own `llama-batched-bench` prints, by batch."""
    prompt, output = run.workload["prompt_tokens"], run.workload["output_tokens"]
    folder = peers.environment(run.peers, "llama.cpp")
    command = [
        f"{folder}/{LLAMA_BENCH}", "-m", str(file),
        "-c", str(max(batches) * (prompt + output)), "-npp", str(prompt), "-ntg", str(output),
        "-npl", ",".join(map(str, batches)), "-t", str(kernels.num_threads()),
        "--output-format", "jsonl",
    ]  # fmt: skip
    return {
        row["pl"]: dict(zip(NAMES, (row["speed_pp"], row["speed_tg"]), strict=True))
        for row in json_lines(command)
    }


def write_ggufs(run: Run, folder: Path, size: Size, weight_format: str) -> list[Gguf]:
    """The model in every form that the workload names for the peer; none if it is not there."""
    llama = peers.environment(run.peers, "llama.cpp")
    python = peers.environment(run.peers, "kt-kernel")
    if run.quick or llama is None or python is None:
        return []
    if not (llama / LLAMA_BENCH).is_file():
        print(f"peer left out: {llama / LLAMA_BENCH} is not built", file=sys.stderr)
        return []
    version = (llama / "version").read_text().strip()
    files = []
    for form in run.workload["peer_forms"][weight_format]:
        experts, rest = form["experts"], form["rest"]
        file = folder / f"{experts}-{rest}.gguf"
        subprocess.run(
            [
                str(python / "bin" / "python"), str(HERE / "write_gguf.py"), str(file),
                str(run.seeds[0]), experts, rest, json.dumps(asdict(size)),
            ],
            check=True,
        )  # fmt: skip
        types = experts if experts == rest else f"{experts} experts, {rest} rest"
        label = f"llama.cpp ({version}) {types}"
        files.append(Gguf(label=label, file=file, batches=form.get("batches", [])))
    return files


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
