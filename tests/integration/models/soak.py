"""Conversions at size: a model of some GB, killed at random moments and gone on with.

python -m tests.integration.models.soak RECORD.json [LAYERS [SEED]]
"""

import json
import math
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from benchmarks.models.random_model import RandomModel
from benchmarks.models.random_tensors import RandomTensors
from inlay.models.conversion.staging import STAGING
from inlay.models.torch_arrays import tensor_of
from inlay.models.weight_names import expected_tensors
from tests.support.conversions import anonymous_bytes, content_of, noted_pieces
from tests.support.tiny_tokenizers import write_tokenizer

KILLS = 3
MOST_MEMORY = 1 << 30
VOCAB = 65_536
TARGETS = {
    "packed": ("--experts", "int4:g32", "--rest", "bf16"),
    "bf16": ("--to", "bf16"),
}


@dataclass
class Ended:
    """How a process of a conversion went.

    Attributes:
        peak_bytes: of its memory that is of no file.
        noted: pieces that its journal told of at last.
    """

    code: int
    peak_bytes: int
    noted: int
    said: str


def write_model(folder: Path, layers: int, seed: int) -> None:
    """A random Qwen3-MoE in bfloat16, whose layers are those of Qwen3-30B-A3B; a file for each."""
    model = RandomModel("qwen3-30b-a3b", seed, num_hidden_layers=layers, vocab_size=VOCAB)
    tensors = RandomTensors(model)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(model.config, indent=2))
    write_tokenizer(folder)
    names = [one.name for one in expected_tensors(model.shape, fused_experts=False)]
    for layer in [*(f".layers.{number}." for number in range(layers)), ""]:
        of_file = [name for name in names if layer in name and (layer or ".layers." not in name)]
        content = {name: tensor_of(tensors.get(name)) for name in of_file}
        save_file(content, folder / f"part{layer.rstrip('.')}.safetensors")


def convert(
    source: Path, target: Path, options: tuple[str, ...], *, kill_at: int | None, late_s: float = 0
) -> Ended:
    """Run a conversion, and kill it some time after so many pieces are noted."""
    command = [sys.executable, "-m", "inlay", "convert", str(source), str(target), *options]
    peak = noted = 0
    kill_s = math.inf
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            noted = max(noted, noted_pieces(target))
            if kill_at is not None and noted >= kill_at:
                kill_s = min(kill_s, time.monotonic() + late_s)
            if time.monotonic() > kill_s:
                process.kill()
            time.sleep(0.005)
        log.seek(0)
        return Ended(process.returncode, peak, noted, log.read())


def one_target(source: Path, folder: Path, to: str, seed: int) -> dict[str, object]:
    """What became of a conversion without and with kills."""
    draw, options = random.Random(seed), TARGETS[to]
    whole = convert(source, folder / f"{to}-whole", options, kill_at=None)
    assert whole.code == 0, whole.said
    target, peaks, noted = folder / f"{to}-killed", [whole.peak_bytes], []
    clean = True
    for kill in range(KILLS):
        # Anywhere in its share of the work, and anywhere between two lines of the journal.
        kill_at = int(whole.noted * (kill + draw.random()) / (KILLS + 1))
        one = convert(source, target, options, kill_at=kill_at, late_s=draw.uniform(0, 1))
        assert one.code == -9, f"ended with {one.code} before its kill: {one.said}"
        clean &= [file.name for file in target.iterdir()] == [STAGING]
        peaks.append(one.peak_bytes)
        noted.append(noted_pieces(target))
    last = convert(source, target, options, kill_at=None)
    assert last.code == 0, last.said
    peaks.append(last.peak_bytes)
    same = content_of(target) == content_of(folder / f"{to}-whole")
    written = sum(file.stat().st_size for file in target.iterdir())
    return {
        "passed": same and clean and max(peaks) < MOST_MEMORY,
        "same_bytes": same,
        "nothing_but_staging_when_killed": clean,
        "peak_anonymous_mib": [round(peak / 2**20) for peak in peaks],
        "source_gb": round(sum(file.stat().st_size for file in source.iterdir()) / 1e9, 2),
        "written_gb": round(written / 1e9, 2),
        "pieces": whole.noted,
        "pieces_done_at_kills": noted,
        "last_said": last.said.splitlines()[:1],
    }


def main() -> None:
    """Write the record; fail when a run did."""
    record = Path(sys.argv[1])
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else secrets.randbits(32)
    folder = Path(tempfile.mkdtemp(prefix="inlay-convert-"))
    runs: list[dict[str, object]] = []
    try:
        write_model(folder / "source", layers, seed)
        for number, to in enumerate(TARGETS):
            run: dict[str, object] = {"conversion": to, "seed": seed + number}
            try:
                run |= one_target(folder / "source", folder, to, seed + number)
            except Exception as error:  # told in the record
                run |= {"passed": False, "error": f"{type(error).__name__}: {error}"}
            runs.append(run)
            print(json.dumps(run), flush=True)
            record.write_text(json.dumps(runs, indent=2) + "\n")
    finally:
        shutil.rmtree(folder)
    sys.exit(0 if all(run["passed"] for run in runs) else 1)


if __name__ == "__main__":
    main()
