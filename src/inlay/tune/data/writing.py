"""Conversations as pieces of text and tokens, prompt and response of each turn apart.

A *writer* does that; there is one by a template's name here, and one by a tokenizer's own chat
template in `inlay.tune.data.chat_template`. Neither tokenizes: pieces of many conversations are
tokenized together (`inlay.tune.data.tokens`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from inlay.core.errors import ConfigError, DataError
from inlay.models.text import Text
from inlay.tune.data.conversations import Conversation, Message
from inlay.tune.data.templates import BOS, CONTENT, EOS, Template

Piece = str | int
"""Text that is tokenized by itself, or a token's id."""

_SLOTS = re.compile(r"(\{bos\}|\{eos\})")
# What looks like a special token in a template's text.
_MARKERS = re.compile(r"<\|[^|<>]+\|>|<｜[^｜<>]+｜>|\[gMASK\]|<sop>")


@dataclass(frozen=True)
class Turn:
    """A prompt, and the response to it.

    Attributes:
        prompt: pieces that the model is given.
        response: pieces that it is to say.
        instead: token that it is to say where the prompt begins, if it has gone on; None: none.
    """

    prompt: tuple[Piece, ...]
    response: tuple[Piece, ...]
    instead: int | None = None


class Writer(Protocol):
    """Writes conversations for one model."""

    def write(self, conversation: Conversation) -> list[Turn]:
        """The turns of a conversation, in order.

        Raises:
            DataError: it cannot be written so; with its place.
        """
        ...


class TemplateWriter:
    """Writes by a named template."""

    def __init__(
        self,
        name: str,
        template: Template,
        text: Text,
        *,
        default_system: str | None = None,
        enable_thinking: bool = True,
        last_thought_only: bool = False,
    ) -> None:
        """Check that the template fits the model.

        Args:
            name: of the template, for messages.
            template: what to write.
            text: the model's tokenizer.
            default_system: in place of the template's own.
            enable_thinking: an empty chain of thought is a part of the response; False: of the
                prompt, and chains of thought in the data are left out.
            last_thought_only: chains of thought are left out of all responses but the last.

        Raises:
            ConfigError: the template writes tokens that the model does not have.
        """
        self._name, self._template = name, template
        self._default_system = template.default_system if default_system is None else default_system
        self._enable_thinking = enable_thinking
        self._last_thought_only = last_thought_only
        self._bos = text.token_id(text.special_tokens.get("bos_token", ""))
        self._eos = text.token_id(text.special_tokens.get("eos_token", ""))
        self._thought = template.thought
        self._check(text)

    def write(self, conversation: Conversation) -> list[Turn]:
        """See `Writer`."""
        if conversation.tools or any(
            message["role"] == "tool" or "tool_calls" in message for message in conversation.turns
        ):
            raise DataError(
                f"{conversation.place}: has tools, which template {self._name} does not write: "
                "leave template out, so that the tokenizer's own chat template does"
            )
        system = conversation.system or self._default_system
        messages = conversation.turns
        turns = []
        for number in range(0, len(messages), 2):
            asked = self._prompt(str(messages[number]["content"]), number == 0, system)
            is_last = number == len(messages) - 2
            thought, answer = self._response(messages[number + 1], is_last)
            if not self._enable_thinking:
                asked, thought = asked + thought, ()
            instead = self._eos if self._template.eos_at_end and number else None
            turns.append(Turn(asked, thought + answer, instead))
        if self._template.eos_at_end:
            assert self._eos is not None  # checked when the writer was made
            last = turns[-1]
            turns[-1] = Turn(last.prompt, (*last.response, self._eos), last.instead)
        return turns

    def _prompt(self, content: str, is_first: bool, system: str) -> tuple[Piece, ...]:
        template = self._template
        pieces: tuple[Piece, ...] = ()
        if is_first:
            pieces = self._pieces(template.prefix)
            if system and template.system_in_user:
                content = template.system.replace(CONTENT, system, 1) + content
            elif system:
                pieces += self._pieces(template.system, system)
        return pieces + self._pieces(template.user, content)

    def _response(
        self, message: Message, is_last: bool
    ) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """An empty chain of thought, where one belongs in front of a response; the response."""
        content = str(message["content"])
        if self._thought is None:
            return (), self._pieces(self._template.assistant, content)
        opened, closed = self._thought
        is_history = self._last_thought_only and not is_last
        if is_history or not self._enable_thinking:
            content = _without_thought(content, opened, closed)
        has_thought = opened.strip() in content or closed.strip() in content
        thought = () if has_thought or is_history else (opened + closed,)
        return thought, self._pieces(self._template.assistant, content)

    def _pieces(self, slots: str, content: str = "") -> tuple[Piece, ...]:
        """The pieces of a template's text, its slots filled."""
        found: list[Piece] = []
        for part in _SLOTS.split(slots):
            token = {BOS: self._bos, EOS: self._eos}.get(part)
            if token is not None:
                found.append(token)
            elif part not in ("", BOS, EOS):
                found.append(part.replace(CONTENT, content, 1))
        return tuple(piece for piece in found if piece != "")

    def _check(self, text: Text) -> None:
        template = self._template
        written = "".join(
            (template.prefix, template.system, template.user, template.assistant, EOS)
            if template.eos_at_end
            else (template.prefix, template.system, template.user, template.assistant)
        )
        if EOS in written and self._eos is None:
            raise ConfigError(
                f"template={self._name}: ends responses with the model's EOS token, and "
                "tokenizer_config.json names none (eos_token)"
            )
        missing = sorted(
            {mark for mark in _MARKERS.findall(written) if text.token_id(mark) is None}
        )
        if missing:
            raise ConfigError(
                f"template={self._name} does not fit the model: its vocabulary lacks "
                f"{', '.join(missing)}. Leave template out, so that the tokenizer's own chat "
                "template is taken, or name the template of the model's family"
            )


def _without_thought(content: str, opened: str, closed: str) -> str:
    pattern = f"{re.escape(opened)}(.*?){re.escape(closed)}"
    return re.sub(pattern, "", content, flags=re.DOTALL).lstrip("\n")


def texts_of(turns: Sequence[Turn]) -> list[str]:
    """The pieces that are to be tokenized, in order."""
    return [
        piece
        for turn in turns
        for piece in (*turn.prompt, *turn.response)
        if isinstance(piece, str)
    ]
