"""What a file of packed weights says of its model. Loads no torch."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inlay import kernels
from inlay.core.errors import ModelFileError, UnsupportedModelError
from inlay.core.model_shape import ModelShape
from inlay.models.formats import full_name

PACKED_FILE = "weights.inlay"


@dataclass(frozen=True)
class PackedMetadata:
    """What lies in the file's table beside the places of its parts.

    Attributes:
        shape: a `ModelShape` as JSON has it.
        weight_format: a full name.
        float_dtype: of the floats that were kept as they are.
        fingerprint: of the checkpoint that it was made from.
    """

    shape: dict[str, Any]
    weight_format: str
    float_dtype: str
    fingerprint: str

    def check_shape(self, file: Path, shape: ModelShape) -> None:
        """Raise ModelFileError where config.json beside the file is that of another model."""
        mine = plain_shape(shape)
        if wrong := [key for key in mine if self.shape.get(key) != mine[key]]:
            differences = ", ".join(
                f"{key} {self.shape.get(key)} instead of {mine[key]}" for key in wrong
            )
            raise ModelFileError(
                f"{file} belongs to another model than config.json beside it: it has {differences}"
            )

    def check_format(self, file: Path | str, weight_format: str) -> None:
        """Raise UnsupportedModelError where another format is asked for; `auto` takes any."""
        if weight_format != "auto" and full_name(weight_format) != self.weight_format:
            raise UnsupportedModelError(
                f"{file} holds weights as {self.weight_format}, and weight_format "
                f"{weight_format!r} was asked for: leave it out, or take the model's safetensors"
            )


def packed_metadata(packed: kernels.PackedFile) -> PackedMetadata:
    """Of an open file.

    Raises:
        ModelFileError: it holds something else.
    """
    found = packed.metadata
    try:
        return PackedMetadata(
            shape=found["shape"],
            weight_format=found["weight_format"],
            float_dtype=found["float_dtype"],
            fingerprint=found["fingerprint"],
        )
    except KeyError as error:
        raise ModelFileError(f"{packed.path} lacks {error}, it is no packed model") from error


def plain_shape(shape: ModelShape) -> dict[str, Any]:
    """The shape as it comes back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(shape)))
    return plain
