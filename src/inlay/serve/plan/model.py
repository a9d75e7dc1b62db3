"""From a model's name to its shape and the formats of its parts; no weights are touched."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.core.errors import ConfigError, ModelError, ModelNotFoundError
from inlay.core.hardware import Machine
from inlay.core.known_models import known_config, known_models
from inlay.core.model_config import read_config, shape_of
from inlay.core.model_shape import ModelShape
from inlay.core.near_names import did_you_mean
from inlay.core.roofline import Formats
from inlay.core.text_files import read_json_object
from inlay.models.small_models import SMALL_MODELS

if TYPE_CHECKING:
    from inlay.models.packed_metadata import PackedMetadata

_HUB_NAME = re.compile(
    r"(?P<modelscope>modelscope:)?(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?"
)


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    """A model as its config.json has it.

    Attributes:
        name: as the user called it.
        origin: where config.json came from.
        packed: what its packed weights say of themselves, where it has such.
    """

    name: str
    origin: str
    shape: ModelShape
    packed: "PackedMetadata | None" = None

    def held_as(self, weight_format: str) -> str:
        """What to do for another format."""
        verb = "--weight-format" if self.packed is None else "converted to"
        return f"{verb} {weight_format}"


def find_model(name: str | None) -> PlannedModel:
    """Read a config.json: of the demo, a directory, a file (GGUF, too), a known model, or a hub.

    Raises:
        ModelNotFoundError: none of these; the message names the known models, near names first.
        ModelFileError: config.json is damaged.
        UnsupportedModelError: the architecture, or how weights are quantised, is not supported, or
            an extra is missing.
        ModelError: the hub cannot be reached.
    """
    if name is None:
        from inlay.models.source import resolve_model

        source = resolve_model(None)
        return PlannedModel(
            name=source.name, origin="the demo model", shape=shape_of(read_config(source.directory))
        )
    path = Path(name).expanduser()
    if path.is_dir():
        shape = shape_of(read_config(path))
        return PlannedModel(
            name=name, origin="its directory", shape=shape, packed=_read_packed(path, shape)
        )
    if path.is_file() and path.suffix.lower() == ".gguf":
        from inlay.models.gguf import gguf_directory  # its library is not loaded for others

        shape = shape_of(read_config(gguf_directory(path)))
        return PlannedModel(name=name, origin="what the file says of itself", shape=shape)
    if path.is_file():
        return PlannedModel(name=name, origin="the file", shape=shape_of(_read_file(path)))
    known = known_config(name)
    if known is not None:
        return PlannedModel(name=name, origin="facts that come with Inlay", shape=shape_of(known))
    match = _HUB_NAME.fullmatch(SMALL_MODELS[name].hub if name in SMALL_MODELS else name)
    meant = did_you_mean(name.rpartition("/")[2], known_models())
    if match is None or name.startswith((".", "~", "/")):
        raise ModelNotFoundError(
            f"there is no model {name}: {meant}{' Or ' if meant else ''}give a directory or "
            "config.json, a hub name such as Qwen/Qwen3-0.6B or modelscope:Qwen/Qwen3-0.6B, or one "
            f"of {', '.join(known_models())}"
        )
    from inlay.models import hub, modelscope

    origin = "ModelScope" if match["modelscope"] else "the hub"
    fetch_config = modelscope.fetch_config if match["modelscope"] else hub.fetch_config
    try:
        config = fetch_config(match["name"], revision=match["revision"])
    except ModelError as error:
        if not meant:
            raise
        known_here = f"{error}; of the models that need no download, {meant}"
        raise type(error)(known_here) from error
    return PlannedModel(name=name, origin=origin, shape=shape_of(config))


def _read_file(file: Path) -> dict[str, Any]:
    return read_json_object(file, remedy="name a config.json, or its directory")


def _read_packed(directory: Path, shape: ModelShape) -> "PackedMetadata | None":
    from inlay.kernels import PackedFile
    from inlay.models.packed_metadata import PACKED_FILE, packed_metadata

    file = directory / PACKED_FILE
    if not file.is_file():
        return None
    packed = packed_metadata(PackedFile(file))
    packed.check_shape(file, shape)
    return packed


def choose_formats(model: PlannedModel, weight_format: str, machine: Machine) -> Formats:
    """The formats of a model's parts for what `--weight-format` says.

    Without a GPU keys and values of a model in float16 are float32.

    Raises:
        ConfigError: there is no such format.
    """
    from inlay.models.formats import (
        FLOAT_FORMATS,
        WEIGHT_FORMATS,
        block_formats,
        full_name,
        halves,
        is_weight_format,
        part_formats,
    )

    if not is_weight_format(weight_format):
        raise ConfigError(
            f"--weight-format {weight_format}: must be one of {', '.join(WEIGHT_FORMATS)}, or two "
            "of them, of experts and of the rest: int4:g32+bfloat16"
        )
    shape = model.shape
    dtype = shape.dtype if shape.dtype in FLOAT_FORMATS else "bfloat16"
    kv = "float32" if dtype == "float16" and not machine.gpus else dtype
    if weight_format == "auto" and model.packed is not None:
        name, dtype = model.packed.weight_format, model.packed.float_dtype
    elif weight_format != "auto":
        name = full_name(weight_format)
    else:
        stored = shape.quantization
        name = dtype if stored is None else stored.weight_format
        if stored is not None and stored.blocks is not None and not machine.gpus:
            return Formats(**vars(block_formats(stored.blocks)), embedding=dtype, kv=kv)
    held, (_, rest) = part_formats(shape, name, dtype), halves(name)
    if rest in FLOAT_FORMATS and (rest != "float16" or machine.gpus):
        kv = rest
    return Formats(**vars(held), embedding=dtype, kv=kv)
