"""tune/moe_layer: one layer of routed experts in training, frozen, with LoRA on every expert.

A forward and a backward pass each, apart and together, beside the multiplications of the frozen
weights alone at the measured bf16 peak (LoRA is not counted), a PyTorch loop over experts in
bfloat16 in this process, and kt-kernel's operator, which is a script of `--peers`.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.case import Run
from benchmarks.kernels import limits
from benchmarks.kernels.layers import LayerShape, expected_touched, routings
from benchmarks.kernels.peer_layers import ENVIRONMENTS
from benchmarks.triples import Comparison, Limit
from inlay import kernels

NAMES = ("forward_backward_ms", "forward_ms", "backward_ms")
PEER_S = 900
LORA_SCALE = 2.0

Times = dict[str, float]


def measure(run: Run) -> Generator[Comparison, None, None]:
    """One comparison per shape and format."""
    import torch

    torch.set_num_threads(kernels.num_threads())
    for params in run.params(NAMES[0]):
        layer = Layer(LayerShape.of(params), run.workload, run.seeds[0])
        tokens = params["tokens"]
        experts = kernels.pack_experts(*layer.base, params["base_format"])
        touched = expected_touched(layer.shape, tokens) / layer.shape.experts
        nbytes, operations = experts.nbytes * touched, layer.shape.operations(tokens)

        def at_the_limit(nbytes: float = nbytes, operations: float = operations) -> Times:
            one = limits.roofline_ms(nbytes, operations, "bf16")
            return times(one, one)

        peers = {f"torch {torch.__version__} bf16 loop": torch_side(layer, tokens, run.seeds[0])}
        for label, side in kt_sides(run, layer.shape, params["base_format"], tokens):
            peers[label] = side
        yield Comparison(
            name=NAMES,
            params=params,
            ours=our_side(layer, experts, tokens, run.seeds[0]),
            limit=Limit(name=limits.NAME, measure=at_the_limit),
            peers=peers,
            seeds=run.seeds,
        )


def times(forward_ms: float, backward_ms: float) -> Times:
    """What every side gives."""
    return dict(zip(NAMES, (forward_ms + backward_ms, forward_ms, backward_ms), strict=True))


class Layer:
    """The weights of a layer and of its LoRA: each expert a part of one Gaussian matrix."""

    def __init__(self, shape: LayerShape, workload: Mapping[str, Any], seed: int) -> None:
        self.shape, rank = shape, workload["lora_rank"]
        rng = np.random.default_rng(seed)
        e, m, f = shape.experts, shape.hidden, shape.intermediate
        sides = ((f, m), (f, m), (m, f))
        self.base = [0.05 * rng.standard_normal((e, *side), np.float32) for side in sides]
        small = ((rank, m), (f, rank), (rank, m), (f, rank), (rank, f), (m, rank))
        self.lora = [0.03 * rng.standard_normal((e, *side), np.float32) for side in small]

    def activations(self, tokens: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Input and gradient of the output."""
        rng = np.random.default_rng([seed, tokens])
        size = (tokens, self.shape.hidden)
        return 0.3 * rng.standard_normal(size, np.float32), 0.1 * rng.standard_normal(
            size, np.float32
        )


def our_side(
    layer: Layer, experts: kernels.ExpertWeights, tokens: int, seed: int
) -> Callable[[], Times]:
    """Both passes of our kernels."""
    names = list(kernels.ExpertLora.__dataclass_fields__)[:6]
    lora = kernels.ExpertLora(**dict(zip(names, layer.lora, strict=True)), scale=LORA_SCALE)
    x_TM, grad_TM = layer.activations(tokens, seed)
    out_TM = np.empty_like(x_TM)
    drawn = routings(layer.shape, tokens, 1, seed)

    def side() -> Times:
        ids_CTK, weights_CTK = next(drawn)
        start = time.perf_counter()
        saved = kernels.moe_saving(x_TM, experts, ids_CTK[0], weights_CTK[0], out_TM, lora=lora)
        middle = time.perf_counter()
        kernels.moe_backward(saved, grad_TM)
        return times((middle - start) * 1e3, (time.perf_counter() - middle) * 1e3)

    side()
    return side


def torch_side(layer: Layer, tokens: int, seed: int) -> Callable[[], Times]:
    """A loop over the experts that have tokens, in bfloat16, with autograd."""
    import torch
    from torch.nn.functional import linear, silu

    gate, up, down = (torch.from_numpy(matrix).bfloat16() for matrix in layer.base)
    lora = [torch.from_numpy(matrix).bfloat16().requires_grad_() for matrix in layer.lora]
    x, grad = (torch.from_numpy(a).bfloat16() for a in layer.activations(tokens, seed))
    x.requires_grad_()
    drawn = routings(layer.shape, tokens, 1, seed)

    def project(v: Any, base: Any, pair: int, expert: int) -> Any:
        low = linear(v, lora[2 * pair][expert])
        return linear(v, base[expert]) + LORA_SCALE * linear(low, lora[2 * pair + 1][expert])

    def forward(ids: Any, weights: Any) -> Any:
        out = torch.zeros_like(x)
        for expert in range(layer.shape.experts):
            rows, places = (ids == expert).nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            v = x[rows]
            h = silu(project(v, gate, 0, expert)) * project(v, up, 1, expert)
            result = project(h, down, 2, expert) * weights[rows, places, None].bfloat16()
            out = out.index_add(0, rows, result)
        return out

    def side() -> Times:
        ids_CTK, weights_CTK = next(drawn)
        ids = torch.from_numpy(ids_CTK[0])
        weights = torch.from_numpy(weights_CTK[0]).requires_grad_()
        start = time.perf_counter()
        out = forward(ids, weights)
        middle = time.perf_counter()
        torch.autograd.grad(out, [x, weights, *lora], grad)
        return times((middle - start) * 1e3, (time.perf_counter() - middle) * 1e3)

    side()
    return side


def kt_sides(
    run: Run, shape: LayerShape, weight_format: str, tokens: int
) -> list[tuple[str, Callable[[], Times]]]:
    """kt-kernel's operator, where its script and environment are, for layers not too large."""
    variant = run.workload["kt_variants"].get(weight_format)
    weights = 3 * shape.hidden * shape.intermediate * shape.experts
    if run.peers is None or variant is None or weights > run.workload["kt_max_weights"]:
        return []
    script = run.peers / "sft_kt_kernel.py"
    python = ENVIRONMENTS / "kt-kernel" / "bin" / "python"
    missing = [str(path) for path in (script, python) if not path.exists()]
    if missing:
        print(f"peer left out: {', '.join(missing)} missing", file=sys.stderr)
        return []
    sizes = (shape.hidden, shape.intermediate, shape.experts, shape.top_k)
    command = [
        str(python), str(script), variant, "--shape", "/".join(map(str, sizes)),
        "--tokens", str(tokens), "--rank", str(run.workload["lora_rank"]),
        "--repeats", str(run.workload["kt_repeats"]), "--threads", str(kernels.num_threads()),
    ]  # fmt: skip
    try:
        _, label = ask_kt(command, script.parent)
    except (subprocess.SubprocessError, ValueError) as error:
        print(f"peer left out: {script.name} {variant}: {error}", file=sys.stderr)
        return []
    return [(label, lambda: ask_kt(command, script.parent)[0])]


def ask_kt(command: list[str], folder: Path) -> tuple[Times, str]:
    """Medians of a few calls in a process of its own, which packs its weights anew, and its label.

    Raises:
        ValueError: it printed no times.
    """
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PEER_S, check=True
    )
    found: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        if "median" in row:
            found[row["case"].split()[0]] = row
    if found.keys() != {"forward", "backward"}:
        raise ValueError(f"no times of both passes: {done.stdout[-300:]}{done.stderr[-300:]}")
    row = found["forward"]
    return times(row["median"], found["backward"]["median"]), f"{row['peer']} {row['version']}"
