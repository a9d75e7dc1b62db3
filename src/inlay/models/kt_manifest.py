"""`kt_adapter_manifest.json`, by which KTransformers says what an adapter's files must be.

It has the size and the SHA-256 of each file. An adapter whose files are others is refused, as it is
there; what the manifest says of the base weights is about KTransformers' own copies of them.
"""

import hashlib
from pathlib import Path

from inlay.core.errors import ModelFileError
from inlay.core.text_files import read_json_object

NAME = "kt_adapter_manifest.json"
_VERSION = 1


def check_manifest(directory: Path, names: list[str]) -> None:
    """Compare an adapter's files with its manifest, if it has one.

    Args:
        names: of files with matrices, each of which must be in it.

    Raises:
        ModelFileError: the manifest cannot be read or is no finished one, a file is missing,
            damaged, or not in it.

    Cost: reads the files once.
    """
    file = directory / NAME
    if not file.is_file():
        return
    try:
        manifest = read_json_object(file, remedy="fetch the adapter again")
        artifacts = {
            str(name): (int(entry["size"]), str(entry["sha256"]))
            for name, entry in dict(manifest["artifacts"]).items()
        }
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelFileError(f"{file} is damaged ({error!r}): fetch the adapter again") from error
    version, status = manifest.get("version", _VERSION), manifest.get("status")
    if version != _VERSION or status != "ready":
        raise ModelFileError(
            f"{file} has version {version} and status {status}: must be {_VERSION} and ready; an "
            "adapter whose writing was broken off is not read"
        )
    for name in names:
        if name not in artifacts:
            raise ModelFileError(f"{file} does not have {name}: files of two adapters are mixed")
    for name, (size_bytes, digest) in artifacts.items():
        if Path(name).name != name:
            raise ModelFileError(f"{file} has {name}, which is not in its folder")
        try:
            found_bytes, found = (directory / name).stat().st_size, _sha256(directory / name)
        except OSError as error:
            raise ModelFileError(
                f"{directory / name}: {error.strerror}, but {NAME} has it"
            ) from error
        if (found_bytes, found) != (size_bytes, digest):
            raise ModelFileError(
                f"{directory / name} has {found_bytes} bytes and SHA-256 {found[:12]}..., and "
                f"{NAME} {size_bytes} and {digest[:12]}...: fetch the adapter again"
            )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
