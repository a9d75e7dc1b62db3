"""`tekken.json`: Mistral's vocabularies since Nemo."""

from binascii import a2b_base64
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from inlay.core.errors import ModelFileError
from inlay.core.text_files import read_json_object
from inlay.models.vocabularies.added import find_first, surround
from inlay.models.vocabularies.byte_pairs import byte_pairs, numbered, printable
from inlay.models.vocabularies.cuts import CUTS
from inlay.models.vocabularies.merges import merges_of
from inlay.models.vocabularies.vocabulary import Vocabulary

# Of files that do not name them; further ones have no use.
_SPECIAL = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] "
    "[SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
_NAMES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}


def read_tekken(file: Path, config: Mapping[str, Any]) -> Vocabulary:
    """Read one. Texts begin with `<s>`.

    Args:
        file: of the model's directory.
        config: tokenizer_config.json, which says nothing that this file does not.

    Raises:
        ModelFileError: it is damaged.

    Cost: about 8 microseconds a token.
    """
    content = read_json_object(file)
    try:
        about = content["config"]
        count = about["default_num_special_tokens"]
        named = content.get("special_tokens") or [
            {"rank": rank, "token_str": text} for rank, text in enumerate(_SPECIAL)
        ]
        special = {one["rank"]: one for one in named}
        texts = [
            special[rank]["token_str"] if rank in special else f"<SPECIAL_{rank}>"
            for rank in range(count)
        ]
        ranked = content["vocab"][: about["default_vocab_size"] - count]
        words = printable([a2b_base64(one["token_bytes"]) for one in ranked])
        cut = replace(CUTS["tekken"], regexes=(about["pattern"],))
        tokenizer = byte_pairs(cut, numbered([*texts, *words]), merges_of(words))
    except (LookupError, TypeError, ValueError, AttributeError, ModelFileError) as error:
        raise ModelFileError(
            f"{file} cannot be used ({error!r}): it is damaged; download it again"
        ) from error
    find_first(
        tokenizer,
        (
            AddedToken(
                text, normalized=False, special=special.get(rank, {}).get("is_control", True)
            )
            for rank, text in enumerate(texts)
        ),
    )
    names = {name: text for name, text in _NAMES.items() if text in texts}
    surround(tokenizer, names.get("bos_token"), None)
    return Vocabulary.of(tokenizer, names)
