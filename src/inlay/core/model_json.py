"""JSON files of models, as people and hubs leave them."""

import json
from pathlib import Path
from typing import Any

from inlay.core.errors import ModelFileError

_POINTER = b"version https://git-lfs.github.com/spec/"


def read_json_object(file: Path, *, remedy: str = "download it again") -> dict[str, Any]:
    """Read a JSON object; a byte-order mark, which editors leave before it, is passed over.

    Args:
        remedy: what to do about a file that is none, for the message.

    Raises:
        ModelFileError: it is no JSON object, not in UTF-8, or a pointer of Git LFS.
        OSError: it cannot be read.
    """
    data = file.read_bytes()
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        refuse_lfs_pointer(file)
        raise ModelFileError(f"{file} is not valid JSON ({error}): {remedy}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{file} holds a {type(value).__name__}, not a JSON object")
    return value


def refuse_lfs_pointer(file: Path) -> None:
    """Say so of a file that stands for one in Git LFS: a clone without `git lfs` has such.

    Raises:
        ModelFileError: it does.
    """
    with file.open("rb") as stream:
        if stream.read(len(_POINTER)) != _POINTER:
            return
    raise ModelFileError(
        f"{file} is a pointer of Git LFS, not the file itself: run `git lfs pull` where it is, or "
        "download it from the hub"
    )
