"""Conversations as a tokenizer's own chat template writes them, with exact ends of prompts.

The template is a program that writes a whole conversation. Where each response begins and ends in
that text follows from what it writes of the conversation's beginnings: up to the prompt, with the
opening of the response; and up to the response. A template may write earlier turns otherwise than
the last one (those of reasoning models leave thoughts out); then the response is found by its text.
"""

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

from inlay.core.errors import ConfigError, DataError, RequestError
from inlay.models.text import Text
from inlay.tune.data.conversations import Conversation, Message
from inlay.tune.data.writing import Turn

_END_OF_THOUGHT = "</think>"


class ChatTemplateWriter:
    """Writes by the tokenizer's chat template."""

    def __init__(
        self, text: Text, *, default_system: str | None = None, enable_thinking: bool = True
    ) -> None:
        """Take a model's tokenizer.

        Args:
            text: the tokenizer.
            default_system: system prompt of conversations that have none.
            enable_thinking: what the template is told; templates that know it write an empty chain
                of thought, for False as a part of the prompt.

        Raises:
            ConfigError: it has no chat template.
        """
        if text.chat_template is None:
            raise ConfigError(
                "template is not set, and the model has no chat template of its own: name a "
                "template, such as default or chatml"
            )
        self._text = text
        self._default_system = default_system
        self._variables: dict[str, Any] = {} if enable_thinking else {"enable_thinking": False}

    def write(self, conversation: Conversation) -> list[Turn]:
        """See `Writer`."""
        messages = conversation.messages
        if self._default_system and not conversation.system:
            messages = ({"role": "system", "content": self._default_system}, *messages)
        tools = conversation.tools or None
        try:
            return self._turns(messages, tools)
        except _NoEnd as error:
            raise DataError(
                f"{conversation.place}: where message {error} begins or ends cannot be told from "
                "what the tokenizer's chat template writes: name a template"
            ) from None
        except RequestError as error:
            raise DataError(f"{conversation.place}: {error}") from None

    def _turns(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> list[Turn]:
        whole = self._render(messages, tools)
        turns = []
        at = 0
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            begin = self._begin(messages[:number], tools, whole, number)
            end = self._end(messages[: number + 1], tools, whole, begin)
            turns.append(Turn((whole[at:begin],), (whole[begin:end],)))
            at = end
        if at < len(whole):  # what a template writes after the last response
            turns[-1] = Turn(turns[-1].prompt, (*turns[-1].response, whole[at:]))
        return turns

    def _begin(
        self, before: Sequence[Message], tools: Sequence[Any] | None, whole: str, number: int
    ) -> int:
        """Where the response to the messages `before` begins: where their prompt ends."""
        least = len(self._render(before, tools))
        prompt = self._render(before, tools, add_generation_prompt=True)
        begin = len(commonprefix((prompt, whole)))
        if begin < least:
            raise _NoEnd(number + 1)
        return begin

    def _end(
        self, upto: Sequence[Message], tools: Sequence[Any] | None, whole: str, begin: int
    ) -> int:
        """Where the last of the messages `upto`, which begins at `begin`, ends."""
        alone = self._render(upto, tools)
        if whole.startswith(alone):
            return len(alone)
        said = str(upto[-1]["content"]).rpartition(_END_OF_THOUGHT)[2].strip()
        at, last = whole.find(said, begin), alone.rfind(said)
        if not said or at < 0 or last < 0:
            raise _NoEnd(len(upto))
        tail = alone[last + len(said) :]
        if not whole.startswith(tail, at + len(said)):
            raise _NoEnd(len(upto))
        return at + len(said) + len(tail)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None,
        add_generation_prompt: bool = False,
    ) -> str:
        if not messages:
            return ""
        return self._text.render_chat(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **self._variables,
        )


class _NoEnd(Exception):
    """A response's ends are not to be found; says which message it is, from 1."""
