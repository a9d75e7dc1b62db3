"""Conversations as a tokenizer's own chat template writes them, with exact ends of prompts.

The template is a program that writes a whole conversation. Where each response begins and ends in
that text follows from what it writes of the conversation's beginnings: up to the prompt, with the
opening of the response; and up to the response. A template may write earlier turns otherwise than
the last one (those of reasoning models leave thoughts out); then the response is found by its end.
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
            enable_thinking: what the template is told. With False, chains of thought in the data
                are left out, and templates that know it write an empty one in the prompt.

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
        self._enable_thinking = enable_thinking
        self._variables: dict[str, Any] = {} if enable_thinking else {"enable_thinking": False}

    def write(self, conversation: Conversation) -> list[Turn]:
        """See `Writer`."""
        messages = conversation.messages
        if self._default_system and not conversation.system:
            messages = ({"role": "system", "content": self._default_system}, *messages)
        if not self._enable_thinking:
            messages = tuple(map(_without_thought, messages))
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
            is_last = number == len(messages) - 1
            end = len(whole) if is_last else self._end(messages[: number + 1], tools, whole, begin)
            turns.append(Turn((whole[at:begin],), (whole[begin:end],)))
            at = end
        return turns

    def _begin(
        self, before: Sequence[Message], tools: Sequence[Any] | None, whole: str, number: int
    ) -> int:
        """Where the response to the messages `before` begins: where their prompt ends."""
        prompt = self._render(before, tools, add_generation_prompt=True)
        if whole.startswith(prompt):
            return len(prompt)
        least = len(self._render(before, tools))
        common = commonprefix((prompt, whole))
        mark = common.rfind("<", least)
        if mark >= 0 and ">" not in common[mark:]:  # they part after a mark, never within one
            common = common[:mark]
        if len(common) < least:
            raise _NoEnd(number + 1)
        return len(common)

    def _end(
        self, upto: Sequence[Message], tools: Sequence[Any] | None, whole: str, begin: int
    ) -> int:
        """Where the last of the messages `upto`, which begins at `begin`, ends."""
        alone = self._render(upto, tools)
        if whole.startswith(alone):
            return len(alone)
        # An earlier turn is written otherwise than the last one: without its thoughts, say. It ends
        # with its answer and what follows that in the last one; or, where it has none, with an end
        # of what it was written as when it was the last.
        answer, names = _said(upto[-1])
        at, last = whole.find(answer, begin), alone.rfind(answer)
        if answer and at >= 0 and last >= 0:
            end = at + len(alone) - last
            fits = whole[at:end] == alone[last:]
        else:
            end = begin + _overlap(alone[begin:], whole[begin:])
            fits = end > begin
        if not fits or not all(name in whole[begin:end] for name in names):
            raise _NoEnd(len(upto))
        return end

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


def _overlap(first: str, second: str) -> int:
    """Length of the longest end of `first` that is a beginning of `second`."""
    at = first.find(second[:1])
    while at >= 0 and not second.startswith(first[at:]):
        at = first.find(second[:1], at + 1)
    return len(first) - at if at >= 0 else 0


def _said(message: Message) -> tuple[str, list[str]]:
    """What is in a response's text however a template writes it: the answer, and names of tools."""
    names = [call["function"]["name"] for call in message.get("tool_calls", ())]
    return _without_thought(message)["content"].strip(), names


def _without_thought(message: Message) -> Message:
    if message["role"] != "assistant":
        return message
    return {**message, "content": message["content"].rpartition(_END_OF_THOUGHT)[2].lstrip("\n")}


class _NoEnd(Exception):
    """A response's ends are not to be found; says which message it is, from 1."""
