"""Text and JSON files, as people, editors and hubs leave them. Records are in `core.records`.

Text is UTF-8 with or without a byte-order mark, its lines end in any way.
"""

import json
from pathlib import Path
from typing import Any

from inlay.core.errors import InlayError, ModelFileError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""What editors leave before a text in UTF-8."""

_POINTER = b"version https://git-lfs.github.com/spec/"
# What UTF-16 and UTF-32 files begin with, but for those of zeros, which are no text either.
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")


def read_text(file: Path, *, error: type[InlayError] = ModelFileError) -> str:
    """Read a text in UTF-8; a byte-order mark before it is passed over.

    Args:
        error: what is raised for a file that is none.

    Raises:
        InlayError: `error`, where it is not UTF-8, which the message says with the line, or a
            pointer of Git LFS.
        OSError: it cannot be read.
    """
    data = file.read_bytes()
    if data.startswith(_POINTER):
        raise _pointer(file, error)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        if data.startswith(_OTHER_ENCODINGS):
            raise error(f"{file} is UTF-16 or UTF-32: save it as UTF-8") from None
        line, byte = data.count(b"\n", 0, wrong.start) + 1, data[wrong.start]
        raise error(
            f"{file}, line {line}: is not UTF-8 (byte 0x{byte:02x} at {wrong.start}): save it as "
            "UTF-8"
        ) from None


def read_json(
    file: Path, *, remedy: str = "download it again", error: type[InlayError] = ModelFileError
) -> Any:
    """Read a JSON file.

    Args:
        remedy: what to do about a file that is none, for the message.
        error: what is raised for such a file.

    Raises:
        InlayError: `error`, where it is no JSON, not in UTF-8, or a pointer of Git LFS.
        OSError: it cannot be read.
    """
    return parse_json(read_text(file, error=error), file, remedy=remedy, error=error)


def read_json_object(
    file: Path, *, remedy: str = "download it again", error: type[InlayError] = ModelFileError
) -> dict[str, Any]:
    """Read a JSON object. Arguments and errors are those of `read_json`."""
    value = read_json(file, remedy=remedy, error=error)
    if not isinstance(value, dict):
        raise error(f"{file} holds a {kind_of(value)}, not a JSON object: {remedy}")
    return value


def parse_json(text: str, file: Path, *, remedy: str, error: type[InlayError]) -> Any:
    """The value that a file's text is. Arguments and errors are those of `read_json`."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as wrong:
        raise error(f"{file}, line {wrong.lineno}: {reason_of(wrong)}: {remedy}") from None
    except (ValueError, RecursionError) as wrong:
        raise error(f"{file}: {reason_of(wrong)}: {remedy}") from None


def reason_of(error: Exception) -> str:
    """Why a text is no JSON, by what the standard library raised."""
    if isinstance(error, json.JSONDecodeError):
        return f"is no JSON ({error.msg}, column {error.colno})"
    return f"is no JSON that can be read ({error})"


def kind_of(value: object) -> str:
    """What JSON calls a value."""
    names = {dict: "object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def refuse_lfs_pointer(file: Path, *, error: type[InlayError] = ModelFileError) -> None:
    """Say so of a file that stands for one in Git LFS: a clone without `git lfs` has such.

    Args:
        error: what is raised for such a file.

    Raises:
        InlayError: `error`, where it does.
        OSError: it cannot be read.
    """
    with file.open("rb") as stream:
        if stream.read(len(_POINTER)) == _POINTER:
            raise _pointer(file, error)


def _pointer(file: Path, error: type[InlayError]) -> InlayError:
    return error(
        f"{file} is a pointer of Git LFS, not the file itself: run `git lfs pull` where it is, or "
        "download it from the hub"
    )
