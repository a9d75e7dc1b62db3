"""A GGUF file, or the parts of one: metadata and tensors, mapped. Loads no torch.

The format's own library reads it. Source: the GGUF specification of ggml.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf import GGUFReader, ReaderTensor

from inlay.core.errors import ModelFileError, ModelNotFoundError

LINK = "model.gguf"
"""The file, in a directory that `gguf_directory` made."""

_PART = re.compile(r"(?P<name>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class GgufFile:
    """What one or several files hold.

    Attributes:
        files: all parts, in order.
        metadata: by key; values as Python has them.
        tensors: by name.
    """

    def __init__(self, file: Path) -> None:
        """Map a file, and those that belong to it (`-00001-of-00003`).

        Raises:
            ModelNotFoundError: there is no such file, or a part of it is missing.
            ModelFileError: it is cut off or damaged, or of a version that is not known.
        """
        self.files = _parts_of(file)
        readers = [_read(part) for part in self.files]
        fields = readers[0].fields
        self.metadata: Mapping[str, Any] = {
            name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")
        }
        self.tensors: Mapping[str, ReaderTensor] = {
            tensor.name: tensor for reader in readers for tensor in reader.tensors
        }


def _parts_of(file: Path) -> list[Path]:
    match = _PART.fullmatch(file.name)
    parts = [file]
    if match is not None:
        count = int(match["count"])
        names = (f"{match['name']}-{n:05d}-of-{count:05d}.gguf" for n in range(1, count + 1))
        parts = [file.with_name(name) for name in names]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelNotFoundError(
            f"{file.parent} lacks {missing[0]} ({len(missing)} of {len(parts)} files): download "
            "the model again"
        )
    return parts


def _read(file: Path) -> GGUFReader:
    try:
        return GGUFReader(file)
    except (ValueError, KeyError, IndexError, TypeError, OverflowError, OSError) as error:
        raise ModelFileError(
            f"{file} ({file.stat().st_size} bytes) cannot be read as GGUF ({error}): it is cut off "
            "or damaged, or of a version that Inlay does not know; versions 2 and 3 are read"
        ) from error
