"""models/gguf_logits: logits of one GGUF file, ours and llama.cpp's.

What a file means is exact: its weights as floats, and float32 arithmetic, in `transformers`.
llama.cpp rounds the input of each product to 8 bits, with a scale per 32 values, or per 256 for
types with such blocks. How much that alone changes the logits is the limit: the same rounding
before each product, in PyTorch. Keys and values are float32 on all sides.

A value is the relative L2 error of one position's logits. A rounding can turn the choice of an
expert, so that single positions differ much more than the median, on all sides.
"""

import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType
from numpy.typing import NDArray

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.triples import Samples
from inlay import kernels
from inlay.core.weight_format import BLOCK_FORMATS, format_named
from inlay.models.model import load_model
from tests.support.gguf_files import TOKENIZER, gguf_and_floats
from tests.support.model_driver import ModelDriver

HERE = Path(__file__).parent
EIGHT_BITS = 127
SMALL_BLOCK = 32
# What an architecture has besides, in the workload.
_PARTS = {"qwen3_moe": "experts", "deepseek_v2": "latent"}

Logits = NDArray[np.float32]


def measure(run: Run) -> Generator[Samples, None, None]:
    """Ours in the file's own format beside llama.cpp, and llama.cpp beside what it rounds."""
    for params in run.params("own_format"):
        with tempfile.TemporaryDirectory() as name:
            yield from measure_file(run, params, Path(name))


def measure_file(run: Run, params: dict[str, Any], folder: Path) -> list[Samples]:
    """One file."""
    kind = GGMLQuantizationType[params["type"]]
    size = run.workload["size"] | {"architecture": params["architecture"], "seed": run.seeds[0]}
    size |= run.workload.get(_PARTS.get(params["architecture"], ""), {})
    # The rows of this one are a head's width, less than a block; llama.cpp falls back like this.
    narrow = {"attn_k_b": GGMLQuantizationType.Q8_0} if _is_large(kind.name.lower()) else {}
    directory, floats = gguf_and_floats(
        folder, kind, size, metadata=tokenizer(size["vocab_size"]), others=narrow
    )
    generator = torch.Generator().manual_seed(run.seeds[0])
    tokens = torch.randint(size["vocab_size"], (run.workload["tokens"],), generator=generator)
    exact = exact_logits(floats, tokens)
    own = errors(our_logits(directory, tokens.tolist()), exact)
    label, theirs = llama_logits(run, folder / "model.gguf", tokens.tolist())
    if theirs is None:
        return [Samples(name="own_format", params=params, values=own, seeds=run.seeds)]
    between = errors(theirs.reshape(exact.shape), exact)
    with rounded_inputs(256 if _is_large(kind.name.lower()) else SMALL_BLOCK):
        limit = "8-bit activations in PyTorch", errors(exact_logits(floats, tokens), exact)
    return [
        Samples(
            name="own_format", params=params, values=own, peers={label: between}, seeds=run.seeds
        ),
        Samples(name="llama_cpp", params=params, values=between, limit=limit, seeds=run.seeds),
    ]


def _is_large(name: str) -> bool:
    """Whether a type's blocks have more than 32 weights."""
    return name in BLOCK_FORMATS and format_named(name).block > SMALL_BLOCK


def tokenizer(size: int) -> dict[str, Any]:
    """One that both sides accept; it is not used."""
    return TOKENIZER | {
        "tokenizer.ggml.tokens": [*map(str, range(size))],
        "tokenizer.ggml.token_type": [1] * size,
        "tokenizer.ggml.merges": ["1 0"],
    }


def our_logits(directory: Path, tokens: list[int]) -> Logits:
    """Ours in the format of the file, of every position."""
    driver = ModelDriver(load_model(directory), num_pages=2 + len(tokens) // 16, dtype="float32")
    return np.asarray(driver.prefill(tokens), np.float32)


def errors(actual: Logits, exact: Logits) -> list[float]:
    """Relative L2 error of each position."""
    difference = np.linalg.norm(actual - exact, axis=1)
    return [float(ratio) for ratio in difference / np.linalg.norm(exact, axis=1)]


def llama_logits(run: Run, file: Path, tokens: list[int]) -> tuple[str, Logits | None]:
    """The peer's name and what it computes; None if it is not there."""
    home = peers.environment(run.peers, "llama.cpp")
    if home is None:
        return "", None
    libraries = home / "build" / "bin"
    program, out = file.with_name("llama_logits"), file.with_name("logits")
    build = [
        "g++", "-std=c++20", "-O2", str(HERE / "llama_logits.cpp"), f"-I{home}/source/include",
        f"-I{home}/source/ggml/include", f"-L{libraries}", "-lllama", "-lggml", "-lggml-base",
        f"-Wl,-rpath,{libraries}", "-o", str(program),
    ]  # fmt: skip
    command = [str(program), str(file), str(out), str(kernels.num_threads()), *map(str, tokens)]
    for step in (build, command):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"peer left out: {step[0]} failed: {done.stderr[-500:]}", file=sys.stderr)
            return "", None
    version = (home / "version").read_text().strip()
    return f"llama.cpp ({version})", np.fromfile(out, np.float32)


@torch.inference_mode()
def exact_logits(floats: Path, tokens: torch.Tensor) -> Logits:
    """What `transformers` computes in float32, of every position."""
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        floats,
        attn_implementation="eager",
        experts_implementation="eager",
        dtype=torch.float32,
    )
    found = model.eval()(input_ids=tokens[None], use_cache=False).logits[0]
    values: Logits = found.float().numpy()
    return values


@contextmanager
def rounded_inputs(group: int) -> Iterator[None]:
    """As long as this is open, the input of each product has 8 bits."""
    linear = torch.nn.functional.linear

    def rounding(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        groups = x.unflatten(-1, (-1, group))
        scales = groups.abs().amax(-1, keepdim=True).clamp_min(1e-30) / EIGHT_BITS
        return linear(((groups / scales).round() * scales).flatten(-2), *weights)

    torch.nn.functional.linear = rounding
    try:
        yield
    finally:
        torch.nn.functional.linear = linear
