"""Tokens that a tokenizer finds in a text before all others, and those that it puts around one."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from inlay.core.errors import ModelFileError
from inlay.core.text_files import read_json_object

_FLAGS = ("lstrip", "rstrip", "single_word", "special")
_MAX_IDS = 1 << 22


def added_tokens(directory: Path, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Those that a model's files name, by id. They are found in a text as it is written.

    Args:
        directory: of the model; added_tokens.json counts where tokenizer_config.json has none.
        config: tokenizer_config.json.

    Raises:
        ModelFileError: they are not of the form that `transformers` writes.
    """
    named = config.get("added_tokens_decoder")
    beside = directory / "added_tokens.json"
    try:
        if named is None and beside.is_file():
            found = {
                int(number): AddedToken(text, normalized=False, special=True)
                for text, number in read_json_object(beside).items()
            }
        else:
            found = {
                int(number): AddedToken(
                    about["content"],
                    normalized=False,
                    **{flag: about[flag] for flag in _FLAGS if flag in about},
                )
                for number, about in (named or {}).items()
            }
        if not all(0 <= number < _MAX_IDS for number in found):
            raise ValueError(f"an id above {_MAX_IDS}, or a negative one")
        return found
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{directory}: its added tokens cannot be used ({error!r}): download tokenizer_config"
            ".json and added_tokens.json again"
        ) from error


def find_first(tokenizer: tokenizers.Tokenizer, tokens: Iterable[AddedToken]) -> None:
    """Have a tokenizer find tokens of its vocabulary in a text before all others."""
    tokens = list(tokens)
    tokenizer.add_special_tokens([token for token in tokens if token.special])
    tokenizer.add_tokens([token for token in tokens if not token.special])


def surround(tokenizer: tokenizers.Tokenizer, begin: str | None, end: str | None) -> None:
    """Have a tokenizer begin and end texts with tokens; None stands for no such token."""
    around = [token for token in (begin, end) if token]
    single = [token for token in (begin, "$A", end) if token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single,
        pair=[*single, *("$B" if part == "$A" else part for part in single)],
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(around)],
    )
