"""Tokenizers as GGUF files have them: one that is made, and one of a model directory."""

import json
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

NORMAL, CONTROL = 1, 3
ENDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def made_tokenizer(size: int) -> dict[str, Any]:
    """Metadata of a tokenizer of GPT-2's kind with so many tokens, and about as many merges.

    Single bytes, all pairs of them, and triples as far as there is room: what reading such a
    vocabulary takes is as for a learned one of that size, and every text can be told in it.
    """
    alphabet = sorted(ByteLevel.alphabet())
    pairs = [first + second for first, second in product(alphabet, repeat=2)]
    parts = chain(product(alphabet, repeat=2), product(pairs, alphabet))
    merged = list(islice(parts, size - len(alphabet) - len(ENDS)))
    tokens = [*alphabet, *map("".join, merged)]
    return _metadata([*tokens, *ENDS], set(ENDS), [" ".join(parts) for parts in merged]) | {
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.eos_token_id": size - 1,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tokenizer_of(directory: Path) -> dict[str, Any]:
    """Metadata of the tokenizer of a model directory that has GPT-2's kind and words."""
    about = json.loads((directory / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in about["added_tokens"]}
    ids = about["model"]["vocab"] | added
    merges = [
        pair if isinstance(pair, str) else " ".join(pair) for pair in about["model"]["merges"]
    ]
    config = json.loads((directory / "config.json").read_text())
    return _metadata(sorted(ids, key=ids.__getitem__), set(added), merges) | {
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
        "tokenizer.chat_template": (directory / "chat_template.jinja").read_text(),
    }


def _metadata(tokens: list[str], control: set[str], merges: list[str]) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL if one in control else NORMAL for one in tokens],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }
