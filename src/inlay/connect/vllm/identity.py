"""On what KV of a vLLM instance depends besides tokens, as a namespace of block names."""

import hashlib
import json
from pathlib import Path
from typing import Any

from inlay.core.block_hash import Namespace
from inlay.core.errors import ConfigError
from inlay.core.kv_format import DTYPE_BYTES, KvFormat, Plane
from inlay.core.shard_content import add_content
from inlay.core.text_files import read_json_object


def instance_namespace(vllm_config: Any, kv_cache_config: Any, model_id: str | None) -> Namespace:
    """The namespace of an instance, without adapter and salt of single requests.

    vLLM's pages have another inner order than Inlay's own engine's, and so other names.

    Raises:
        ConfigError: the cache is of a kind that the connector does not move.
    """
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ConfigError(
            f"the model has {len(groups)} kinds of KV cache; the connector moves one "
            "(start vLLM with --disable-hybrid-kv-cache-manager)"
        )
    parallel = vllm_config.parallel_config
    for name in ("pipeline_parallel_size", "decode_context_parallel_size"):
        if getattr(parallel, name, 1) != 1:
            raise ConfigError(
                f"{name} is {getattr(parallel, name)}; the connector works with 1 of it"
            )
    spec = groups[0].kv_cache_spec
    if not hasattr(spec, "num_kv_heads"):
        raise ConfigError(f"the connector does not move a cache of kind {type(spec).__name__}")
    dtype = str(spec.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise ConfigError(
            f"the connector does not move KV of dtype {dtype}; it moves {', '.join(DTYPE_BYTES)}"
        )
    model = vllm_config.model_config
    layers = len(groups[0].layer_names)
    token_elements = spec.page_size_bytes // spec.block_size // DTYPE_BYTES[dtype]
    degree = parallel.tensor_parallel_size
    return Namespace(
        fingerprint=f"vllm/{_kind(spec)}/{model_id or weights_id(model.model, model.revision)}",
        weight_format=f"{str(model.dtype).removeprefix('torch.')}/{model.quantization or 'plain'}",
        kv_format=KvFormat(
            page_tokens=spec.block_size,
            dtype=dtype,
            planes=(Plane("kv", token_elements),),
            layers=layers,
            tp_degree=degree,
            kv_heads=spec.num_kv_heads * degree,
        ),
    )


def weights_id(model: str, revision: str | None) -> str:
    """What stands for the weights: of a directory its content, else name and revision.

    Of a directory: config.json, and its shards as `core.shard_content.add_content` has them.

    Raises:
        ModelFileError: config.json is damaged.

    Cost: below 0.1 s where the files are in the page cache.
    """
    directory = Path(model)
    if not directory.is_dir():
        return f"{model}@{revision or 'main'}"
    digest = hashlib.blake2b(digest_size=16)
    config = directory / "config.json"
    if config.is_file():
        digest.update(json.dumps(read_json_object(config), sort_keys=True).encode())
    add_content(digest, sorted(directory.glob("*.safetensors")))
    return digest.hexdigest()


def _kind(spec: Any) -> str:
    """MLA and plain attention may have pages of one size; a window is another model's anyway."""
    return type(spec).__name__
