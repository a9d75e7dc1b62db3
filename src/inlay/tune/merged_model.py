"""A model with adapters merged into it, as an ordinary Hugging Face directory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from inlay.core.errors import ConfigError
from inlay.core.model_config import QUANTIZATION_FILE, read_config, read_shape
from inlay.core.model_shape import ModelShape
from inlay.models.adapter import read_adapter
from inlay.models.checkpoint import Checkpoint, open_checked
from inlay.models.conversion.convert import small_files, stamp_of, write_product
from inlay.models.conversion.float_config import float_config
from inlay.models.conversion.float_product import FloatProduct
from inlay.models.conversion.pieces import Product
from inlay.models.conversion.staging import Staging
from inlay.models.conversion.work import Progress
from inlay.models.float_arrays import BFLOAT16
from inlay.models.published.files import QuantizedFiles
from inlay.models.published.rows import BlockRows, QuantizedRows
from inlay.models.source import resolve_model
from inlay.models.weight_names import expected_tensors, names_of
from inlay.tune.config import TuneConfig
from inlay.tune.frozen import check_trainable
from inlay.tune.merge import MergedTensors
from inlay.tune.requantized import RequantizedProduct

_GB = 10**9


def export(
    config: TuneConfig,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Merge `adapter_name_or_path` into the model, and write it to `export_dir`.

    Floats keep their dtype; quantised weights become bfloat16, or with `export_as=base` what they
    were, of GGUF a file of the same name, types and metadata. Tensors pass one by one; what was
    begun and did not end goes on where it was.

    Args:
        progress: called now and then with bytes read and in all, about.
        say: takes what is worth a line.

    Returns:
        What is served then: `export_dir`, or the (first) GGUF file in it.

    Raises:
        ConfigError: no adapter or no `export_dir` is named.
        ModelError: as `load_model` and `read_adapter`; `export_as=base` of a GGUF file with types
            that are not written.
        ArgumentError: `export_dir` holds something else.
        ResourceError: the disk is too small.
    """
    if config.export_dir is None or not config.adapter_name_or_path:
        raise ConfigError("export needs adapter_name_or_path and export_dir: set both")
    source = resolve_model(
        config.model_name_or_path, weight_format=None, cache_dir=config.cache_path
    ).directory
    shape, target = read_shape(source), Path(config.export_dir)
    check_trainable(shape)
    tensors, fused = open_checked(source, shape)
    adapters = [read_adapter(Path(name), shape) for name in config.adapter_name_or_path]
    merged = MergedTensors(tensors, shape, adapters)
    extras = {file.name: file.read_bytes() for file in small_files(source)}
    product: Product
    served = target
    if config.export_as == "base" and shape.quantization is not None:
        if isinstance(tensors, QuantizedFiles):
            shards = config.export_size * _GB
            product = RequantizedProduct(shape, tensors, merged, fused=fused, shard_bytes=shards)
        else:
            product, extras = _gguf(tensors, merged, shape), {}  # all is in the file
            served = target / next(iter(product.files))
    else:
        dtype = _dtype(tensors, names_of(shape).names["embedding"])
        product = FloatProduct(
            shape, merged, fused=fused, dtype=dtype, shard_bytes=config.export_size * _GB
        )
        extras["config.json"] = float_config(read_config(source), dtype.name)
        extras.pop(QUANTIZATION_FILE, None)
    with Staging(target, say) as staging:
        write_product(
            product,
            staging,
            extras,
            source_stamp=stamp_of(source),
            progress=progress,
            say=say,
        )
    return served


def _gguf(tensors: Checkpoint, merged: MergedTensors, shape: ModelShape) -> Product:
    # Loads the format's library.
    from inlay.models.gguf.rewritten import RewrittenGguf
    from inlay.models.gguf.tensors import GgufTensors

    assert isinstance(tensors, GgufTensors)
    names = [one.name for one in expected_tensors(shape, fused_experts=False)]
    changed = [name for name in names if merged.is_changed(name)]
    return RewrittenGguf(tensors, merged, changed, fingerprint=merged.fingerprint(shape))


def _dtype(tensors: Checkpoint, name: str) -> np.dtype[Any]:
    stored = tensors.view(name)
    return BFLOAT16 if isinstance(stored, QuantizedRows | BlockRows) else stored.dtype
