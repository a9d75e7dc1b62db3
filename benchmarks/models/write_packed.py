"""Writes a random model as a directory that the engine maps: config, tokenizer, packed weights."""

import json
import tempfile
from pathlib import Path

from benchmarks.models.random_model import RandomModel
from benchmarks.models.random_tensors import RandomTensors
from inlay.models.conversion.convert import write_product
from inlay.models.conversion.packed_product import PackedProduct
from inlay.models.conversion.staging import Staging
from inlay.models.formats import full_name, part_formats
from inlay.models.native_ops import NativeOps
from inlay.models.placed import Placed
from inlay.models.tensor_weights import TensorWeights
from inlay.models.weights import OpenWeights
from tests.support.tiny_tokenizers import write_tokenizer

FLOAT_DTYPE = "bfloat16"


def write_packed_model(folder: Path, model: RandomModel, weight_format: str) -> None:
    """Draw, quantise and write piece by piece."""
    weight_format = full_name(weight_format)
    weights = TensorWeights(
        RandomTensors(model),
        model.shape,
        Placed.whole(NativeOps(), model.shape),
        part_formats(model.shape, weight_format, FLOAT_DTYPE),
        fused_experts=False,
    )
    opened = OpenWeights(weights, weight_format, FLOAT_DTYPE, 0, f"random {model.seed}")
    with tempfile.TemporaryDirectory() as name:
        write_tokenizer(Path(name))
        beside = {file.name: file.read_bytes() for file in Path(name).iterdir()}
    beside["config.json"] = json.dumps(model.config, indent=2).encode()
    with Staging(folder, print) as staging:
        write_product(PackedProduct(model.shape, opened, weights), staging, beside)
