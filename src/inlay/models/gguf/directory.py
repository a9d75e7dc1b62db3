"""A model directory for a GGUF file: what it says of itself, written out, and a link to it."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from inlay.core.errors import InlayError, ModelFileError, ModelNotFoundError
from inlay.core.settings import read_settings
from inlay.models.gguf.config import config_of
from inlay.models.gguf.reader import LINK, GgufFile, parts_of
from inlay.models.gguf.tokenizer import write_tokenizer

_FORM = 3
"""Of what is written here. Another number where that changes, so that no release reads what an
earlier one made.
"""


def gguf_directory(file: Path, *, cache_dir: Path | None = None) -> Path:
    """The directory of a file, made when it is asked for first.

    It holds config.json, the tokenizer's files, and a link to the file, whose path, size and time
    name it: a file that was changed has another one, and so has one that an earlier release made.

    Args:
        file: a GGUF file, or any of those in which a model lies.
        cache_dir: where directories of GGUF files are kept; None takes `gguf` in Inlay's cache.

    Raises:
        ModelNotFoundError: there is no such file, or others that belong to it are missing.
        ModelFileError: it is damaged.
        UnsupportedModelError: its architecture or tokenizer is not read from GGUF.

    Cost: a few seconds for a vocabulary of 150,000 tokens, the first time.
    """
    file = file.absolute()  # a hub's cache links its names to others, which don't tell the parts
    if not file.is_file():
        raise ModelNotFoundError(f"there is no file {file}")
    file = parts_of(file)[0]
    about = file.stat()
    named = f"{file} {about.st_size} {about.st_mtime_ns} {_FORM}"
    name = f"{file.stem}-{hashlib.blake2b(named.encode(), digest_size=8).hexdigest()}"
    parent = cache_dir or read_settings().cache_dir / "gguf"
    directory = parent / name
    if (directory / LINK).exists():
        return directory
    parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=parent))
    try:
        opened = GgufFile(file)
        with _damage(file):
            (made / "config.json").write_text(json.dumps(config_of(opened), indent=2), "utf-8")
            write_tokenizer(opened.metadata, made)
        (made / LINK).symlink_to(opened.files[0])
        shutil.rmtree(directory, ignore_errors=True)  # one whose file is gone
        made.rename(directory)
    except OSError:
        if not (directory / LINK).exists():  # else another process was first
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return directory


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    """Metadata have any types and values: what is wrong with them shows where they are used."""
    try:
        yield
    except InlayError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{file}: its metadata cannot be used ({error!r}): it is damaged; download it again"
        ) from error
