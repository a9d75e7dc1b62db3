"""What the readers of vocabularies make."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import tokenizers

from inlay.models.vocabularies.token_table import TokenTable


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, and what its file says besides.

    Attributes:
        table: texts of its tokens.
        read_tokenizer: gives the tokenizer; where the table was read without it, reads it then.
            Raises ModelFileError.
        special_tokens: `bos_token` and the like, where the file itself names them.
    """

    table: TokenTable
    read_tokenizer: Callable[[], tokenizers.Tokenizer]
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls, tokenizer: tokenizers.Tokenizer, special_tokens: Mapping[str, str] | None = None
    ) -> "Vocabulary":
        """Take a tokenizer that is made already.

        Raises:
            ModelFileError: its ids are far apart.
        """
        return cls(TokenTable.of(tokenizer), lambda: tokenizer, special_tokens or {})
