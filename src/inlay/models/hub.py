"""Models from the Hugging Face hub: checks first, then only the files that are needed.

Files go to the hub's own cache (`HF_HUB_CACHE`, `HF_HOME`), shared with other programs.
`HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` work as everywhere, read by `huggingface_hub`.
"""

import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.errors import HTTPError as ConnectionFailedError  # type: ignore[attr-defined]
from huggingface_hub.utils.tqdm import tqdm

from inlay.core.errors import (
    ModelError,
    ModelFileError,
    ModelNotFoundError,
    ResourceError,
    UnsupportedModelError,
)
from inlay.core.model_config import QUANTIZATION_FILE, read_config, shape_of
from inlay.core.model_shape import ModelShape
from inlay.core.text_files import read_json_object
from inlay.core.units import format_bytes
from inlay.core.weight_index import WEIGHT_INDEX, weight_map_of
from inlay.models.download import (
    HubFile,
    Progress,
    ProgressCounter,
    Repository,
    fetch_blobs,
    missing_bytes,
)
from inlay.models.formats import format_that_fits, held_bytes
from inlay.models.gguf.architectures import row_of
from inlay.models.hub_gguf import gguf_files, gguf_in_cache, has_gguf, has_others
from inlay.models.memory import total_memory_bytes
from inlay.models.vocabularies import FORMS
from inlay.models.weight_names import expected_tensors

log = logging.getLogger(__name__)

# Everything but weights that a model needs.
SMALL_FILES = (
    "config.json",
    QUANTIZATION_FILE,
    "generation_config.json",
    *FORMS,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    WEIGHT_INDEX,
)
_TEXT_PART = "language_model."  # in names of a model of text and images
_LARGE_BYTES = 5_000_000
_SPARE_DISK_BYTES = 256 << 20


def fetch(
    name: str,
    *,
    revision: str | None = None,
    quant: str | None = None,
    weight_format: str | None = "auto",
    offline: bool = False,
    token: str | None = None,
    progress: Progress | None = None,
    cache_dir: Path | None = None,
    endpoint: str | None = None,
) -> Path:
    """Bring a model into the cache and return its directory, or its (first) GGUF file.

    Args:
        name: `org/name`.
        revision: branch, tag or commit; None is the default branch.
        quant: a quantisation in GGUF, such as `Q4_K_M`; None takes the safetensors, or the only
            quantisation of a repository without.
        weight_format: how the weights will be held, which says what memory they need; None: they
            will not be held.
        offline: use only what the cache holds.
        token: for gated and private models; None takes the stored one or `HF_TOKEN`.
        progress: called with bytes there and bytes in all.
        cache_dir, endpoint: instead of the hub library's own.

    Raises:
        ModelNotFoundError: no such model, revision or file, no access to it, or not in the
            cache while offline.
        UnsupportedModelError: the architecture or file format is not supported; found out
            before the weights are fetched.
        ResourceError: disk or memory is too small; found out before the weights are fetched.
        ModelError: the hub cannot be reached or fails.
    """
    endpoint = endpoint or constants.ENDPOINT
    cache = Path(cache_dir or constants.HF_HUB_CACHE)
    with _clear_errors(name, revision, endpoint):
        if offline or is_offline():
            return _from_cache(name, revision, quant, cache)
        try:
            info = HfApi(endpoint=endpoint, token=token).model_info(
                name, revision=revision, files_metadata=True
            )
        except ConnectionFailedError as error:
            if isinstance(error, HfHubHTTPError):  # it was reached: "no access" counts
                raise
            try:
                return _from_cache(name, revision, quant, cache)
            except (LocalEntryNotFoundError, IncompleteSnapshotError, ModelNotFoundError):
                raise error from None
        repository = Repository(
            name=name, commit=str(info.sha), endpoint=endpoint, token=token, cache_dir=cache
        )
        sizes = {item.rfilename: item.size or 0 for item in info.siblings or []}
        has_tensors = any(file.endswith(".safetensors") for file in sizes)
        if quant is None and (has_tensors or not has_gguf(sizes)):
            return _download(repository, revision, weight_format, sizes, progress)
        files = [HubFile(file, sizes[file]) for file in gguf_files(name, sizes, quant)]
        # The hub has read one of the files, which may be one beside the models.
        if (architecture := (info.gguf or {}).get("architecture")) and not has_others(sizes):
            row_of(architecture, f"{name}, as the hub has it")
        file_bytes = sum(file.size_bytes for file in files)
        _check_resources(repository, files, None, file_bytes if weight_format == "auto" else 0)
        return _fetch_files(repository, revision, files, progress) / files[0].name


def is_offline() -> bool:
    """Whether the hub library's own variable, `HF_HUB_OFFLINE`, switches downloads off."""
    return constants.is_offline_mode()


def fetch_config(
    name: str,
    *,
    revision: str | None = None,
    cache_dir: Path | None = None,
    endpoint: str | None = None,
) -> dict[str, Any]:
    """Bring a model's config.json alone into the cache, and read it.

    Args:
        name, revision, cache_dir, endpoint: as of `fetch`.

    Raises:
        ModelNotFoundError: no such model, revision or file, no access to it, or not in the
            cache while offline.
        ModelFileError: it is damaged.
        ModelError: the hub cannot be reached or fails.
    """
    endpoint = endpoint or constants.ENDPOINT
    with _clear_errors(name, revision, endpoint):
        try:
            file = hf_hub_download(
                name,
                "config.json",
                revision=revision,
                cache_dir=cache_dir,
                endpoint=endpoint,
                tqdm_class=_Silent,
            )
        except RemoteEntryNotFoundError as error:
            raise ModelNotFoundError(
                f"{name} on {endpoint} has no config.json, so it is not a model that can be served"
            ) from error
    return read_config(Path(file).parent)


def _download(
    repository: Repository,
    revision: str | None,
    weight_format: str | None,
    sizes: dict[str, int],
    progress: Progress | None,
) -> Path:
    shape = shape_of(_small_json(repository, "config.json", sizes))
    weights = _weight_files(repository, sizes, shape)
    small = [name for name in sizes if any(fnmatch(name, pattern) for pattern in SMALL_FILES)]
    files = [HubFile(name, sizes[name]) for name in [*small, *weights]]
    held = held_bytes(shape, weight_format, sum(sizes[name] for name in weights))
    _check_resources(repository, files, shape, held)
    return _fetch_files(repository, revision, files, progress)


def _fetch_files(
    repository: Repository,
    revision: str | None,
    files: Sequence[HubFile],
    progress: Progress | None,
) -> Path:
    counter = ProgressCounter(sum(file.size_bytes for file in files), progress)
    large = [file for file in files if file.size_bytes >= _LARGE_BYTES]
    fetch_blobs(repository, large, counter)
    directory = snapshot_download(
        repository.name,
        revision=repository.commit,  # a push since then shall not mix two versions
        cache_dir=repository.cache_dir,
        endpoint=repository.endpoint,
        token=repository.token,
        allow_patterns=[file.name for file in files],
        tqdm_class=_Silent,
    )
    _write_ref(repository, revision or constants.DEFAULT_REVISION)
    counter.add(sum(file.size_bytes for file in files if file not in large))
    return Path(directory)


def _write_ref(repository: Repository, revision: str) -> None:
    """Note the commit of a branch or tag, as the hub library does, for use without network."""
    ref = repository.folder / "refs" / revision
    if revision == repository.commit:
        return
    with suppress(OSError):  # a cache that others wrote may be read-only
        if ref.exists() and ref.read_text() == repository.commit:
            return
        ref.parent.mkdir(parents=True, exist_ok=True)
        new = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
        new.write_text(repository.commit)
        new.replace(ref)


def _small_json(repository: Repository, name: str, sizes: dict[str, int]) -> dict[str, Any]:
    if name not in sizes:
        raise ModelNotFoundError(
            f"{repository.name} on {repository.endpoint} has no {name}, so it is not a model that "
            "can be served"
        )
    file = hf_hub_download(
        repository.name,
        name,
        revision=repository.commit,
        cache_dir=repository.cache_dir,
        endpoint=repository.endpoint,
        token=repository.token,
        tqdm_class=_Silent,
    )
    try:
        return read_json_object(Path(file))
    except ModelFileError as error:
        raise ModelFileError(f"{repository.name}: {error}") from error


def _weight_files(repository: Repository, sizes: dict[str, int], shape: ModelShape) -> list[str]:
    """The shards of the index, or the safetensors at the top; no second copies."""
    if WEIGHT_INDEX in sizes:
        content = _small_json(repository, WEIGHT_INDEX, sizes)
        file_of = weight_map_of(content, f"{repository.name}: {WEIGHT_INDEX}")
        lost = {name: file for name, file in file_of.items() if file not in sizes}
        if needed := sorted(set(_needed(lost, shape).values())):
            raise ModelFileError(
                f"{repository.name}: {WEIGHT_INDEX} names {', '.join(needed[:4])}, which the "
                "repository does not have"
            )
        if lost:
            log.warning(
                "%s: %s names %s, which the repository does not have and the model does not need",
                repository.name,
                WEIGHT_INDEX,
                ", ".join(sorted(set(lost.values()))[:4]),
            )
        return sorted(set(file_of.values()) & sizes.keys())
    top = [name for name in sizes if name.endswith(".safetensors") and "/" not in name]
    names = ["model.safetensors"] if "model.safetensors" in top else sorted(top)
    if not names:
        others = sorted(name for name in sizes if name.endswith((".bin", ".pt", ".pth", ".gguf")))
        raise UnsupportedModelError(
            f"{repository.name} has no *.safetensors weights"
            + (f" (it has {', '.join(others[:3])})" if others else "")
            + ": only safetensors are read; take the model's safetensors variant"
        )
    return names


def _needed(file_of: dict[str, str], shape: ModelShape) -> dict[str, str]:
    """Those of the tensors of an index that belong to modules of the model's text part."""
    modules = {
        one.name.rpartition(".")[0]
        for fused in (False, True)
        for one in expected_tensors(shape, fused_experts=fused)
    }
    return {
        name: file
        for name, file in file_of.items()
        if name.replace(_TEXT_PART, "").rpartition(".")[0] in modules
    }


def _check_resources(
    repository: Repository, files: Sequence[HubFile], shape: ModelShape | None, weight_bytes: int
) -> None:
    repository.cache_dir.mkdir(parents=True, exist_ok=True)
    needed = missing_bytes(repository, files)
    check_space(repository.name, repository.cache_dir, needed, shape, weight_bytes, "HF_HOME")


def check_space(
    name: str,
    folder: Path,
    missing: int,
    shape: ModelShape | None,
    weight_bytes: int,
    cache_variable: str,
) -> None:
    """Refuse a download that the disk, or a model that the memory, cannot hold.

    Args:
        folder: where the files go; it exists.
        missing: bytes still to be fetched.
        shape: of the model; None: it is known from the weights alone.
        weight_bytes: that the weights will take in memory.
        cache_variable: the environment variable that moves the hub's cache.

    Raises:
        ResourceError: disk or memory is too small.
    """
    free = shutil.disk_usage(folder).free
    if missing + _SPARE_DISK_BYTES > free:
        raise ResourceError(
            f"{name} needs {format_bytes(missing)} of disk, and {folder} has "
            f"{format_bytes(free)} free: free some, or set {cache_variable} to a larger disk"
        )
    memory = total_memory_bytes()
    if weight_bytes > memory:
        raise ResourceError(
            f"the weights of {name} need {format_bytes(weight_bytes)}, and this machine has "
            f"{format_bytes(memory)} of memory: "
            + (format_that_fits(shape, memory) if shape else "name a smaller quantisation")
        )


def _from_cache(name: str, revision: str | None, quant: str | None, cache: Path) -> Path:
    """As `fetch`, of what is there; raises what the hub's library raises for what is not."""
    snapshot, ggufs = gguf_in_cache(name, revision, cache)
    if ggufs and (quant is not None or not (snapshot / "config.json").exists()):
        return snapshot / gguf_files(f"{name} in the cache", ggufs, quant)[0]
    if quant is not None:
        raise LocalEntryNotFoundError(f"no GGUF files of {name}")
    directory = snapshot_download(
        name,
        revision=revision,
        cache_dir=cache,
        local_files_only=True,
        allow_patterns=[*SMALL_FILES, "*.safetensors"],
    )
    return Path(directory)


class _Silent(tqdm):
    """A bar that shows nothing; progress is reported by ourselves."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("name", None)
        super().__init__(*args, **kwargs | {"disable": True})  # type: ignore[no-untyped-call]


@contextmanager
def _clear_errors(name: str, revision: str | None, endpoint: str) -> Iterator[None]:
    """Turn the hub library's errors into one sentence each."""
    what = f"{name}@{revision}" if revision else name
    try:
        yield
    except GatedRepoError as error:
        raise ModelNotFoundError(
            f"{name} is gated: accept its terms at {endpoint}/{name}, then give a token (run "
            "`hf auth login`, or set HF_TOKEN)"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFoundError(f"{name} on {endpoint} has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelNotFoundError(
            f"there is no model {name} on {endpoint}, or it is private: check the spelling; for a "
            "private model give a token (run `hf auth login`, or set HF_TOKEN)"
        ) from error
    except (LocalEntryNotFoundError, IncompleteSnapshotError, OfflineModeIsEnabled) as error:
        raise ModelNotFoundError(
            f"{what} is not, or not wholly, in the cache, nor a directory here, and downloads are "
            "switched off: run once without offline mode (HF_HUB_OFFLINE), or give a directory"
        ) from error
    except HFValidationError as error:
        raise ModelNotFoundError(f"{name!r} is not a hub name: {error}") from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        advice = (
            "the token is missing or not valid (run `hf auth login`, or set HF_TOKEN)"
            if status in (401, 403)
            else "try again later"
        )
        raise ModelError(f"{endpoint} answered {status} for {what}: {advice}") from error
    except (ConnectionFailedError, ConnectionError) as error:
        raise ModelError(
            f"{endpoint} cannot be reached, or the connection broke ({type(error).__name__}: "
            f"{error}), and there is no directory {name} here: check the network and HF_ENDPOINT "
            "and run again, where a download goes on where it stopped, or give a directory"
        ) from error
