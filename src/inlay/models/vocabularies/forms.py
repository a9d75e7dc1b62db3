"""The forms in which makers publish vocabularies, and which of a model's is read."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.core.text_files import read_text
from inlay.models.vocabularies.sentencepiece import read_sentencepiece
from inlay.models.vocabularies.tekken import read_tekken
from inlay.models.vocabularies.tiktoken import read_tiktoken
from inlay.models.vocabularies.token_table import TokenTable
from inlay.models.vocabularies.vocabulary import Vocabulary


def read_vocabulary(directory: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Read a model's vocabulary, from the first file of `FORMS` that is there.

    Args:
        directory: of the model.
        config: its tokenizer_config.json.

    Raises:
        ModelNotFoundError: there is none.
        ModelFileError: it is damaged; of tokenizer.json that is said of its merges only by
            `Vocabulary.read_tokenizer`, which reads them.
        UnsupportedModelError: it is of a form or kind that is not read.

    Cost: about a processor second for 160,000 tokens, a tenth of it for those of tokenizer.json.
    """
    for name, read in FORMS.items():
        file = directory / name
        if file.is_file():
            return read(file, config)
    if (directory / "vocab.json").is_file():
        raise UnsupportedModelError(
            f"{directory} has vocab.json but no tokenizer.json: write one with transformers "
            "(`AutoTokenizer.from_pretrained(...).save_pretrained(...)`)"
        )
    raise ModelNotFoundError(
        f"{directory} has none of {', '.join(FORMS)}: download the model again"
    )


def _read_whole(file: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Read tokenizer.json, which says all there is to say."""
    with _damage(file):
        table = TokenTable.read(file)
    if table is not None:
        return Vocabulary(table, partial(_read_tokenizer, file))
    tokenizer = _read_tokenizer(file)
    with _damage(file):
        return Vocabulary.of(tokenizer)


@contextmanager
def _damage(file: Path) -> Iterator[None]:
    """Say which file it is that has impossible ids."""
    try:
        yield
    except ModelFileError as error:
        raise ModelFileError(f"{file} is damaged ({error}): download it again") from error


def _read_tokenizer(file: Path) -> tokenizers.Tokenizer:
    text = read_text(file)
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelFileError(
            f"{file} is damaged, or newer than the installed tokenizers "
            f"{tokenizers.__version__} ({error}): download it again"
        ) from error


# The first one that is there is read.
FORMS: dict[str, Callable[[Path, Mapping[str, Any]], Vocabulary]] = {
    "tokenizer.json": _read_whole,
    "tekken.json": read_tekken,
    "tiktoken.model": read_tiktoken,
    "qwen.tiktoken": read_tiktoken,
    "tokenizer.model": read_sentencepiece,
}
