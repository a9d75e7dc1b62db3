"""What the readers of vocabularies make."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and what its file says besides.

    Attributes:
        tokenizer: the tokenizer.
        special_tokens: `bos_token` and the like, where the file itself names them.
    """

    tokenizer: tokenizers.Tokenizer
    special_tokens: Mapping[str, str] = field(default_factory=dict)
