"""Writes a random model as a directory that the engine maps: config, tokenizer, packed weights."""

import json
from pathlib import Path

from benchmarks.kernels.random_model import Size
from benchmarks.kernels.random_tensors import RandomTensors, config
from inlay.core.model_config import read_shape
from inlay.models.formats import full_name, part_formats
from inlay.models.native_ops import NativeOps
from inlay.models.packed import PACKED_FILE, write_packed
from inlay.models.weights import OpenWeights, TensorWeights
from tests.support.tiny_models import write_tokenizer

FLOAT_DTYPE = "bfloat16"


def write_packed_model(folder: Path, size: Size, seed: int, weight_format: str) -> None:
    """Draw, quantise and write layer by layer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config(size), indent=2), "utf-8")
    write_tokenizer(folder)
    weight_format = full_name(weight_format)
    shape = read_shape(folder)
    weights = TensorWeights(
        RandomTensors(size, seed),
        shape,
        NativeOps(),
        part_formats(shape, weight_format, FLOAT_DTYPE),
        fused_experts=False,
    )
    opened = OpenWeights(weights, weight_format, FLOAT_DTYPE, 0, f"random {seed}")
    write_packed(folder / PACKED_FILE, shape, opened)
