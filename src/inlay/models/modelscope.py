"""Models from ModelScope, by its own package, which `inlay[modelscope]` installs.

Files go to that package's cache (`MODELSCOPE_CACHE`). Loads no torch.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inlay.core.errors import ModelError, UnsupportedModelError
from inlay.core.model_config import read_config, shape_of
from inlay.models.formats import file_bytes, held_bytes
from inlay.models.hub import SMALL_FILES, check_space


def fetch(
    name: str,
    *,
    revision: str | None = None,
    weight_format: str | None = "auto",
    offline: bool = False,
    token: str | None = None,
    cache_dir: Path | None = None,
) -> Path:
    """Bring a model into the cache and return its directory.

    Args:
        name: `org/name`.
        revision, weight_format, offline, token, cache_dir: as of `inlay.models.hub.fetch`.

    Raises:
        ModelNotFoundError: it has no config.json.
        UnsupportedModelError: the package is missing, or the architecture is not supported; found
            out before the weights are fetched.
        ResourceError: disk or memory is too small; found out before the weights are fetched.
        ModelError: it cannot be fetched.
    """
    snapshot = partial(_snapshot, name, revision, offline=offline, token=token, cache_dir=cache_dir)
    if not offline:
        directory = snapshot(SMALL_FILES)
        shape = shape_of(read_config(directory))
        whole = file_bytes(shape)
        there = sum(file.stat().st_size for file in directory.glob("*.safetensors"))
        held = held_bytes(shape, weight_format, whole)
        missing = max(0, whole - there)
        check_space(_full(name, revision), directory, missing, shape, held, "MODELSCOPE_CACHE")
    return snapshot([*SMALL_FILES, "*.safetensors"])


def fetch_config(name: str, *, revision: str | None = None) -> dict[str, Any]:
    """Bring a model's config.json alone into the cache, and read it.

    Raises:
        ModelNotFoundError: it has none.
        ModelFileError: it is damaged.
        UnsupportedModelError: the package is missing.
        ModelError: it cannot be fetched.
    """
    return read_config(_snapshot(name, revision, ["config.json"]))


def _full(name: str, revision: str | None) -> str:
    return f"modelscope:{name}@{revision}" if revision else f"modelscope:{name}"


def _snapshot(
    name: str,
    revision: str | None,
    patterns: Sequence[str],
    *,
    offline: bool = False,
    token: str | None = None,
    cache_dir: Path | None = None,
) -> Path:
    """The directory with the files of these patterns."""
    try:
        from modelscope import snapshot_download
    except ImportError as error:
        raise UnsupportedModelError(
            f"{_full(name, revision)} needs the modelscope package: pip install 'inlay[modelscope]'"
        ) from error
    try:
        directory = snapshot_download(
            name,
            revision=revision,
            cache_dir=cache_dir,
            local_files_only=offline,
            allow_patterns=list(patterns),
            token=token,
        )
    except Exception as error:  # the package has no common base of its errors
        raise ModelError(
            f"{_full(name, revision)} cannot be fetched from ModelScope ({type(error).__name__}: "
            f"{error}): check the spelling and the network"
        ) from error
    return Path(directory)
