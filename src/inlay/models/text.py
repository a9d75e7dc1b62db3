"""Tokenizer and chat template of one model directory. Loads no torch.

Reads the vocabulary (tokenizer.json, or another form of `inlay.models.vocabularies`),
tokenizer_config.json, config.json, generation_config.json and the chat template
(chat_template.jinja, chat_template.json, or inside tokenizer_config.json).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from inlay.core.errors import (
    ModelFileError,
    ModelNotFoundError,
    RequestError,
)
from inlay.core.text_files import read_json_object
from inlay.models.chat_template import check_template, render
from inlay.models.text_stream import Spelling, TextStream, make_spelling
from inlay.models.vocabularies import read_vocabulary
from inlay.models.vocabularies.token_table import TokenTable
from inlay.models.vocabularies.vocabulary import Vocabulary

_SPECIAL_KEYS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


class Text:
    """Tokenizer and chat template of one model directory. Safe to use from several threads.

    Attributes:
        vocab_size: the highest token id plus one; the model's own vocabulary may be larger.
        eos_token_ids: tokens that end the model's turn.
        chat_template: the default template's source, or None.
        special_token_ids: left out of text unless asked for.
        special_tokens: `bos_token` and the like, as templates see them.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        eos_token_ids: frozenset[int],
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
    ) -> None:
        table = vocabulary.table
        self._read_tokenizer = vocabulary.read_tokenizer
        self._templates = dict(templates)
        self._spelling: Spelling = make_spelling(table, lambda: self._tokenizer)
        self.vocab_size = table.size
        self.eos_token_ids = eos_token_ids
        self.chat_template = self._templates.get("default")
        self.special_tokens = dict(special_tokens)
        self.special_token_ids = table.special_ids

    @classmethod
    def load(
        cls, directory: Path, *, chat_template: str | None = None, encodes: bool = True
    ) -> "Text":
        """Read a model directory.

        Args:
            directory: the model's.
            chat_template: a template's source, to use instead of all those in the directory.
            encodes: read the tokenizer now. Else the first text that is encoded does, which then
                raises what is wrong with it; ids are turned into text without, but for decoders
                of rare kinds.

        Raises:
            ModelNotFoundError: no directory, or no vocabulary in it.
            ModelFileError: a file is damaged.
            UnsupportedModelError: a vocabulary of a form or kind that is not read.

        Cost: about a processor second for 160,000 tokens, half of it for those of tokenizer.json;
            of the latter 0.1 where it need not encode.
        """
        directory = Path(directory)
        if not directory.is_dir():
            raise ModelNotFoundError(f"there is no model directory {directory}")
        config = _read_json(directory / "tokenizer_config.json")
        vocabulary = read_vocabulary(directory, config)
        beside = _read_json(directory / "special_tokens_map.json")
        special = _special_tokens(config, beside, vocabulary.special_tokens)
        templates = _read_templates(directory, config)
        if chat_template is not None:
            templates = {"default": chat_template}
        for name, source in templates.items():
            check_template(source, f"{directory} ({name})")
        text = cls(
            vocabulary,
            eos_token_ids=_eos_token_ids(directory, vocabulary.table, special),
            templates=templates,
            special_tokens=special,
        )
        if encodes:
            _ = text._tokenizer
        return text

    @cached_property
    def _tokenizer(self) -> tokenizers.Tokenizer:
        return self._read_tokenizer()

    @cached_property
    def tokenizer_json(self) -> str:
        """The tokenizer as JSON text, for libraries that build their own from it."""
        return str(self._tokenizer.to_str())

    def token_id(self, token: str) -> int | None:
        """The id of a token that is written so, None where there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; special tokens written out in it are recognised.

        Args:
            text: any text.
            add_special_tokens: add what the tokenizer puts around a text, such as BOS.
        """
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Token ids of several texts, in parallel."""
        found = self._tokenizer.encode_batch(list(texts), add_special_tokens=add_special_tokens)
        return [encoding.ids for encoding in found]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids outside the vocabulary have none."""
        return self._spelling.decode(token_ids, self._skip(skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """The text of one token by itself, with replacement characters for part characters."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The UTF-8 bytes of one token, perhaps a part of a character."""
        return self._spelling.token_bytes(token_id)

    def stream(
        self, *, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()
    ) -> TextStream:
        """A decoder for one output: `push(token_id)` gives the new text, `flush()` the rest.

        Args:
            skip_special_tokens: special tokens have no text.
            prompt_ids: what the output continues; keeps the space at its beginning and joins
                a character that the prompt leaves incomplete.

        Cost: about a microsecond per token; see `inlay.models.text_stream`.
        """
        return self._spelling.stream(self._skip(skip_special_tokens), prompt_ids)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> str:
        """Write a conversation as the model's chat template does.

        Args:
            messages: in OpenAI form. Templates differ in whether they want the arguments of
                tool calls as an object (most) or as JSON text; they are passed as given.
            tools: function schemas; a template named `tool_use` takes over if there is one.
            add_generation_prompt: end with the opening of the assistant's turn.
            template_kwargs: further variables, such as `enable_thinking`.

        Raises:
            RequestError: there is no chat template, or it refuses the conversation.
        """
        source = self._templates.get("tool_use") if tools else None
        source = source or self.chat_template
        if source is None:
            raise RequestError(
                "this model has no chat template, so it cannot chat: use completions, or add "
                "chat_template.jinja to the model's directory"
            )
        return render(
            source,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            variables={**self.special_tokens, **template_kwargs},
        )

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **template_kwargs: Any,
    ) -> list[int]:
        """Render a conversation and encode it; the template alone decides about BOS."""
        text = self.render_chat(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, **template_kwargs
        )
        return self.encode(text, add_special_tokens=False)

    def _skip(self, skip_special_tokens: bool) -> frozenset[int]:
        return self.special_token_ids if skip_special_tokens else frozenset()


def _read_json(file: Path) -> dict[str, Any]:
    """A JSON object, or an empty one without the file."""
    return read_json_object(file) if file.is_file() else {}


def _special_tokens(*sources: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token` and the like as text; earlier sources win."""
    found: dict[str, str] = {}
    for source in reversed(sources):
        for key in _SPECIAL_KEYS:
            value = source.get(key)
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
    return found


def _read_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name; files win over tokenizer_config.json."""
    templates: dict[str, str] = {}
    inside = config.get("chat_template")
    beside = _read_json(directory / "chat_template.json").get("chat_template")
    for source in (inside, beside):
        if isinstance(source, str):
            templates["default"] = source
        elif isinstance(source, list):
            templates |= _named_templates(directory, source)
    for file in sorted(directory.glob("additional_chat_templates/*.jinja")):
        templates[file.stem] = _read_template(file)
    if (directory / "chat_template.jinja").is_file():
        templates["default"] = _read_template(directory / "chat_template.jinja")
    return templates


def _named_templates(directory: Path, items: list[Any]) -> dict[str, str]:
    named: dict[str, str] = {}
    for item in items:
        name, source = (
            (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        )
        if not isinstance(name, str) or not isinstance(source, str):
            raise ModelFileError(
                f"{directory}: chat_template must be a text, or a list of objects with a name and "
                "a template: download the tokenizer's files again"
            )
        named[name] = source
    return named


def _read_template(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{file} is not UTF-8 text ({error}): download it again") from error


def _eos_token_ids(
    directory: Path, table: TokenTable, special: Mapping[str, str]
) -> frozenset[int]:
    """Those of generation_config.json (else config.json), and the tokenizer's own."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        value = _read_json(directory / name).get("eos_token_id")
        if value is not None:
            values = value if isinstance(value, list) else [value]
            ids |= {item for item in values if type(item) is int}  # `true` is no id
            break
    own = table.find(special.get("eos_token", ""))
    return frozenset(ids if own is None else ids | {own})
