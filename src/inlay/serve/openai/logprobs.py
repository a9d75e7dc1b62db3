"""Log probabilities in the two forms of the OpenAI protocol."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from inlay.core.messages import TokenLogprob
from inlay.models.text import Text

_LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot carry."""


class TokenNames:
    """Texts and bytes of single tokens, remembered.

    Args:
        as_ids: write tokens as `token_id:17`, so that no two look alike.
    """

    def __init__(self, text: Text, *, as_ids: bool = False) -> None:
        self._text = text
        self._as_ids = as_ids
        self.name = lru_cache(maxsize=65536)(self._name)
        self.described = lru_cache(maxsize=65536)(self._described)

    def _name(self, token_id: int) -> str:
        return f"token_id:{token_id}" if self._as_ids else self._text.token_text(token_id)

    def _described(self, token_id: int) -> tuple[str, list[int]]:
        return self.name(token_id), list(self._text.token_bytes(token_id))


def chat_logprobs(logprobs: Sequence[TokenLogprob], names: TokenNames) -> dict[str, Any]:
    """`choice.logprobs` of a chat answer or chunk."""
    return {"content": [_chat_token(entry, names) for entry in logprobs], "refusal": None}


def _chat_token(entry: TokenLogprob, names: TokenNames) -> dict[str, Any]:
    token, raw = names.described(entry.token_id)
    top = []
    for token_id, logprob in entry.top:
        name, data = names.described(token_id)
        top.append({"token": name, "logprob": max(logprob, _LOWEST), "bytes": data})
    return {
        "token": token,
        "logprob": max(entry.logprob, _LOWEST),
        "bytes": raw,
        "top_logprobs": top,
    }


class CompletionLogprobs:
    """Builds `choice.logprobs` of a completion: four lists over tokens, in order.

    Args:
        offset: position of the first token in the choice's text.
        count: how many alternatives were asked for.
    """

    def __init__(self, names: TokenNames, count: int, offset: int = 0) -> None:
        self._names = names
        self._count = count
        self.offset = offset

    def take(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]
    ) -> dict[str, Any]:
        """The lists for the next tokens; the first token of a prompt has no log probability."""
        made: dict[str, list[Any]] = {
            "text_offset": [],
            "token_logprobs": [],
            "tokens": [],
            "top_logprobs": [],
        }
        for token_id, entry in zip(token_ids, logprobs, strict=True):
            name = self._names.name(token_id)
            made["text_offset"].append(self.offset)
            made["tokens"].append(name)
            self.offset += len(name)
            if entry is None:
                made["token_logprobs"].append(None)
                made["top_logprobs"].append(None)
                continue
            made["token_logprobs"].append(max(entry.logprob, _LOWEST))
            top: dict[str, float] = {}
            # Tokens that look alike share a key: the more likely one keeps it.
            for other, logprob in entry.top[: self._count]:
                top.setdefault(self._names.name(other), max(logprob, _LOWEST))
            top.setdefault(name, max(entry.logprob, _LOWEST))
            made["top_logprobs"].append(top)
        return made
