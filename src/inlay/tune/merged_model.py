"""A model with adapters merged into it, as an ordinary Hugging Face directory."""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from inlay.core.errors import ConfigError
from inlay.core.model_config import read_config, read_shape
from inlay.models.adapter import read_adapter
from inlay.models.checkpoint import Checkpoint, open_checked
from inlay.models.conversion.convert import small_files, stamp_of, write_product
from inlay.models.conversion.float_config import float_config
from inlay.models.conversion.float_product import FloatProduct, name_of
from inlay.models.conversion.staging import Staging
from inlay.models.conversion.work import Progress
from inlay.models.source import resolve_model
from inlay.models.weight_names import names_of
from inlay.tune.config import TuneConfig
from inlay.tune.frozen import check_trainable
from inlay.tune.merge import MergedTensors

_GB = 10**9


def export(
    config: TuneConfig,
    *,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Merge `adapter_name_or_path` into the model, and write it to `export_dir`.

    Floats keep their dtype; quantised weights become bfloat16. Tensors pass one by one; what was
    begun and did not end goes on where it was.

    Args:
        progress: called now and then with bytes read and in all, about.
        say: takes what is worth a line.

    Returns:
        `export_dir`.

    Raises:
        ConfigError: no adapter or no `export_dir` is named.
        ModelError: as `load_model` and `read_adapter`.
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
    dtype = _dtype(tensors, names_of(shape).names["embedding"])
    merged = MergedTensors(tensors, shape, adapters)
    product = FloatProduct(
        shape, merged, fused=fused, dtype=dtype, shard_bytes=config.export_size * _GB
    )
    extras = {file.name: file.read_bytes() for file in small_files(source)}
    extras["config.json"] = float_config(read_config(source), name_of(dtype))
    with Staging(target, say) as staging:
        write_product(
            product,
            staging,
            extras,
            source_stamp=stamp_of(source),
            progress=progress,
            say=say,
        )
    return target


def _dtype(tensors: Checkpoint, name: str) -> torch.dtype:
    stored = tensors.view(name)
    return stored.dtype if isinstance(stored, Tensor) else torch.bfloat16
