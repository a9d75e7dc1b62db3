"""Large files of the Hugging Face hub, resumable byte by byte across processes.

`huggingface_hub` resumes a broken connection, but drops what a killed process had of a file, and
a shard has gigabytes. So large files are fetched here into the hub's own cache, as
`blobs/<etag>.inlay-partial`; a finished blob has the place and name that `huggingface_hub`
expects, which then only links it.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import (  # type: ignore[attr-defined]
    WeakFileLock,
    build_hf_headers,
)

from inlay.core.errors import ModelFileError

# Called with bytes there and bytes in all, by several threads but one at a time.
Progress = Callable[[int, int], None]

_WORKERS = 4


@dataclass(frozen=True)
class HubFile:
    """One file of a repository."""

    name: str
    size_bytes: int


class Cancelled(Exception):
    """Another file failed, so this one stops; what it has stays for the next time."""


class ProgressCounter:
    """Adds up the bytes of several files."""

    def __init__(self, total_bytes: int, report: Progress | None) -> None:
        self._lock = threading.Lock()
        self._done_bytes, self._total_bytes, self._report = 0, total_bytes, report
        self.cancelled = False

    def add(self, count: int) -> None:
        """Count bytes; raises Cancelled when the download is to stop."""
        if self.cancelled:
            raise Cancelled
        with self._lock:
            self._done_bytes += count
            if self._report is not None:
                self._report(min(self._done_bytes, self._total_bytes), self._total_bytes)


@dataclass(frozen=True, kw_only=True)
class Repository:
    """Where files come from and go to."""

    name: str
    commit: str
    endpoint: str
    token: str | None
    cache_dir: Path

    @property
    def folder(self) -> Path:
        """The repository's folder in the cache."""
        return self.cache_dir / repo_folder_name(repo_id=self.name, repo_type="model")

    def snapshot_file(self, file: HubFile) -> Path:
        """Where the file is once it is complete."""
        return self.folder / "snapshots" / self.commit / file.name


def missing_bytes(repository: Repository, files: Sequence[HubFile]) -> int:
    """Bytes that the disk still has to take; partial files count as if they were not there."""
    return sum(f.size_bytes for f in files if not repository.snapshot_file(f).exists())


def fetch_blobs(repository: Repository, files: Sequence[HubFile], counter: ProgressCounter) -> None:
    """Bring files into the cache's `blobs`, four at a time, resuming what is there in part.

    Raises:
        ModelFileError: a resumed file does not have the hub's checksum.
        HTTPError, OSError: as `huggingface_hub` raises them.
    """
    with ThreadPoolExecutor(_WORKERS, thread_name_prefix="inlay-download") as pool:
        tasks = [pool.submit(_fetch_blob, repository, file, counter) for file in files]
        try:
            for task in tasks:
                task.result()
        except BaseException:
            counter.cancelled = True
            for task in tasks:
                task.cancel()
            raise


def _fetch_blob(repository: Repository, file: HubFile, counter: ProgressCounter) -> None:
    if repository.snapshot_file(file).exists():
        counter.add(file.size_bytes)
        return
    url = hf_hub_url(
        repository.name, file.name, revision=repository.commit, endpoint=repository.endpoint
    )
    metadata = get_hf_file_metadata(url, token=repository.token, endpoint=repository.endpoint)
    etag = metadata.etag
    too_large = file.size_bytes > constants.MAX_HTTP_DOWNLOAD_SIZE
    if etag is None or Path(etag).name != etag or too_large:
        return  # left to huggingface_hub
    blob = repository.folder / "blobs" / etag
    lock = repository.cache_dir / ".locks" / repository.folder.name / f"{etag}.lock"
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock.parent.mkdir(parents=True, exist_ok=True)
    headers = build_hf_headers(token=repository.token)
    if metadata.xet_file_data is None and metadata.location != url:
        # A signed address of a content network, which must not see the token.
        url = metadata.location
        headers.pop("authorization", None)
    with WeakFileLock(lock):
        if blob.exists():
            counter.add(file.size_bytes)
            return
        partial = blob.with_name(f"{etag}.inlay-partial")
        _append(url, headers, partial, file, counter, etag)
        partial.rename(blob)


def _append(
    url: str,
    headers: dict[str, Any],
    partial: Path,
    file: HubFile,
    counter: ProgressCounter,
    etag: str,
) -> None:
    """Complete the partial file; check the whole if it was resumed."""
    have = partial.stat().st_size if partial.exists() else 0
    if have > file.size_bytes:
        partial.unlink()
        have = 0

    class Bar:
        """What `http_get` needs of a progress bar."""

        def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
            counter.add(initial)

        def __enter__(self) -> "Bar":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def update(self, count: int) -> None:
            counter.add(count)

        def close(self) -> None:
            pass

    if have < file.size_bytes or not partial.exists():
        with partial.open("ab") as stream:
            http_get(
                url,
                stream,
                resume_size=have,
                headers=headers,
                expected_size=file.size_bytes,
                displayed_filename=file.name,
                tqdm_class=Bar,
            )
    else:
        counter.add(have)
    if have and len(etag) == 64 and _sha256(partial) != etag:
        partial.unlink()
        raise ModelFileError(
            f"{file.name}: the resumed download does not have the hub's checksum; it was deleted: "
            "start again"
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
