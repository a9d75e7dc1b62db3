"""From a model's name to its shape and the formats of its parts; no weights are touched."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.errors import (
    ConfigError,
    ModelFileError,
    ModelNotFoundError,
    UnsupportedModelError,
)
from inlay.core.hardware import Machine
from inlay.core.known_models import known_config, known_models
from inlay.core.model_config import read_config, shape_of
from inlay.core.model_shape import ModelShape
from inlay.core.roofline import Formats

_HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
_FLOATS = ("float32", "bfloat16", "float16")
# What makers quantise with, and the format that comes to; what is not quantised stays a float.
_PUBLISHED = {"fp8": "fp8", "mxfp4": "mxfp4", "compressed-tensors": "int4:g32"}


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model as its config.json has it.

    Attributes:
        name: as the user called it.
        origin: where config.json came from.
        published: how its makers quantised the weights, e.g. `fp8`; None: they are floats.
    """

    name: str
    origin: str
    shape: ModelShape
    published: str | None


def find_model(name: str | None) -> PlannedModel:
    """Read a config.json: of the demo, a directory, a file, a known model, or the hub.

    Raises:
        ModelNotFoundError: none of these; the message names the known models.
        ModelFileError: config.json is damaged.
        UnsupportedModelError: the architecture is not supported.
        ModelError: the hub cannot be reached.
    """
    if name is None:
        from inlay.models.source import resolve_model

        source = resolve_model(None)
        return _planned(source.name, "the demo model", read_config(source.directory))
    path = Path(name).expanduser()
    if path.is_dir():
        return _planned(name, "its directory", read_config(path))
    if path.is_file():
        return _planned(name, "the file", _read_file(path))
    known = known_config(name)
    if known is not None:
        return _planned(name, "facts that come with Inlay", known)
    match = _HUB_NAME.fullmatch(name)
    if match is None or name.startswith((".", "~", "/")):
        raise ModelNotFoundError(
            f"there is no model {name}: give a directory or config.json, a hub name such as "
            f"Qwen/Qwen3-0.6B, or one of {', '.join(known_models())}"
        )
    from inlay.models.hub import fetch_config

    return _planned(name, "the hub", fetch_config(match["name"], revision=match["revision"]))


def _read_file(file: Path) -> dict[str, Any]:
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{file} is not valid JSON ({error}): name a config.json, or its directory"
        ) from error
    if not isinstance(config, dict):
        raise ModelFileError(f"{file} holds a {type(config).__name__}, not a JSON object")
    return config


def _planned(name: str, origin: str, config: dict[str, Any]) -> PlannedModel:
    quantization = config.get("quantization_config") or {}
    method = quantization.get("quant_method") if isinstance(quantization, dict) else None
    # Sizes do not depend on it, so what cannot be loaded yet can be planned.
    shape = shape_of({key: value for key, value in config.items() if key != "quantization_config"})
    return PlannedModel(name=name, origin=origin, shape=shape, published=method)


def choose_formats(model: PlannedModel, weight_format: str, machine: Machine) -> Formats:
    """The formats of a model's parts for what `--weight-format` says.

    Processors have no float16: without a GPU it is widened to float32.

    Raises:
        ConfigError: there is no such format.
        UnsupportedModelError: `auto`, of weights quantised in a way that is not known.
    """
    from inlay.models.formats import WEIGHT_FORMATS, full_name, part_formats

    if weight_format not in WEIGHT_FORMATS:
        raise ConfigError(
            f"--weight-format {weight_format}: must be one of {', '.join(WEIGHT_FORMATS)}"
        )
    shape = model.shape
    dtype = shape.dtype if shape.dtype in _FLOATS else "bfloat16"
    if dtype == "float16" and not machine.gpus:
        dtype = "float32"
    if weight_format == "auto" and model.published is not None:
        return _published_formats(model, model.published, dtype)
    held = part_formats(
        shape, dtype if weight_format == "auto" else full_name(weight_format), dtype
    )
    return Formats(
        experts=held.mlp,
        mlp=held.mlp,
        attention=held.attention,
        router=held.router,
        head=held.head,
        embedding=dtype,
        kv=dtype,
    )


def _published_formats(model: PlannedModel, method: str, dtype: str) -> Formats:
    if method not in _PUBLISHED:
        raise UnsupportedModelError(
            f"{model.name}: weights quantised with {method!r} are not known, only "
            f"{', '.join(_PUBLISHED)}: name the format to plan for, e.g. --weight-format int4"
        )
    quantised = _PUBLISHED[method]
    only_experts = method != "fp8"
    rest = dtype if only_experts else quantised
    return Formats(
        experts=quantised,
        mlp=rest,
        attention=rest,
        router="float32" if model.shape.router.exact else dtype,
        head=dtype,
        embedding=dtype,
        kv=dtype,
    )
