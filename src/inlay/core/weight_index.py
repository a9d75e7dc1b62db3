"""`model.safetensors.index.json`, which says in which file each tensor of a model lies."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inlay.core.errors import ModelFileError
from inlay.core.text_files import read_json_object

WEIGHT_INDEX = "model.safetensors.index.json"


def read_weight_index(file: Path) -> dict[str, str]:
    """The names of tensors, each with that of its file, which lies beside the index.

    Raises:
        ModelFileError: the index is damaged, or names files elsewhere.
        OSError: it cannot be read.
    """
    return weight_map_of(read_json_object(file), str(file))


def weight_map_of(content: Mapping[str, Any], where: str) -> dict[str, str]:
    """The same of an index that has been read; `where` it came from is for the message."""
    found = content.get("weight_map")
    if not isinstance(found, dict) or not found:
        raise ModelFileError(f"{where} is damaged (it has no weight_map): download it again")
    if not all(isinstance(name, str) for name in found.values()):
        raise ModelFileError(
            f"{where} does not give a file name for each tensor: download it again"
        )
    for name in found.values():
        if Path(name).name != name:
            raise ModelFileError(f"{where} names files outside the directory: {name!r}")
    return found
