"""Prompts of requests as tokens; the event loop serves others meanwhile, however long they are."""

import asyncio
from functools import cached_property
from typing import Any

from inlay.core.errors import ContextLengthError, RequestError
from inlay.models.text import Text
from inlay.serve.openai.message_form import MessageForm, find_form
from inlay.serve.openai.messages import normalise_messages
from inlay.serve.openai.protocol import ChatRequest
from inlay.serve.openai.tools import ToolPlan
from inlay.serve.openai.written_tools import add_tools
from inlay.serve.parsers import Dialect
from inlay.serve.parsers.writing import Writing

_LONG_TEXT = 20_000
"""Characters from which on tokenising leaves the event loop (about 5 ms)."""
_MANY_MESSAGES = 1000
"""Messages from which on rendering leaves the event loop (about 5 ms)."""
_SHRINKING = 4
"""How many characters of a text a tokenizer may make into one before it cuts tokens."""


class Prompts:
    """What a model's template and tokenizer make of requests.

    Args:
        text: the tokenizer and chat template.
        dialect: how the template is spoken to.
        context_tokens: of prompt and output together, at most.
    """

    def __init__(self, text: Text, dialect: Dialect, context_tokens: int) -> None:
        self._text, self._dialect, self._context_tokens = text, dialect, context_tokens
        self._form: MessageForm | None = None

    async def render(
        self, body: ChatRequest, plan: ToolPlan, *, straight_to_answer: bool = False
    ) -> tuple[str, list[int]]:
        """The prompt of a chat as text and as tokens.

        Args:
            straight_to_answer: leave no room for thinking: turn it off where the template can,
                close it where the template opens it.
        """
        kwargs: dict[str, Any] = dict(body.chat_template_kwargs or {})
        for name in ("self", "messages", "tools", "add_generation_prompt"):
            if name in kwargs:
                raise RequestError(
                    f"chat_template_kwargs must not set {name!r}", "chat_template_kwargs"
                )
        if body.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", body.reasoning_effort)
        if straight_to_answer and self._dialect.switchable:
            kwargs.setdefault("enable_thinking", False)
        if self._text.chat_template is None:
            raise RequestError(
                "this model has no chat template: use /v1/completions, or add one to the model's "
                "directory as chat_template.jinja",
                "messages",
            )
        form = await self._message_form()
        messages = normalise_messages(body.messages, self._dialect, form)
        if plan.tools and not form.shows_tools:
            messages = add_tools(messages, plan.tools, self._writing, form)
        elif plan.tools:
            kwargs["tools"] = [form.tool(tool) for tool in plan.tools]
        kwargs["add_generation_prompt"] = body.add_generation_prompt is not False
        if len(messages) < _MANY_MESSAGES:
            prompt = self._text.render_chat(messages, **kwargs)
        else:
            prompt = await asyncio.to_thread(self._text.render_chat, messages, **kwargs)
        if straight_to_answer:
            prompt += self._dialect.answer_prefix(prompt)
        return prompt, await self.tokenise(prompt, add_special_tokens=False)

    async def _message_form(self) -> MessageForm:
        """What the template does with tools; found out with the first chat (about 0.1 s)."""
        if self._form is None:
            self._form = await asyncio.to_thread(find_form, self._text.render_chat)
        return self._form

    @property
    def _writing(self) -> Writing:
        """How calls are written for a template without a place for tools.

        Raises:
            RequestError: they are not in this notation.
        """
        notation = self._dialect.notation
        if notation.writing is None:
            raise RequestError(
                "this model's chat template has no place for tools, and they are not described "
                f"in the notation {notation.name!r} here: start the server with --chat-template "
                "and a template for tools, or leave out tools",
                "tools",
            )
        return notation.writing

    async def tokenise(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokens of a text; others have their turn meanwhile, however long it is.

        Raises:
            ContextLengthError: no text so long fits into the context. It is not tokenised: that
                would take seconds and gigabytes.
        """
        if len(text) < _LONG_TEXT:
            await asyncio.sleep(0)
            return self._text.encode(text, add_special_tokens=add_special_tokens)
        if len(text) > self._max_characters:
            raise ContextLengthError(
                f"the prompt has {len(text)} characters, but this model's context is "
                f"{self._context_tokens} tokens, prompt and output together: shorten the "
                "prompt",
                None,
            )
        # Of the tokenizer's calls, only those for batches let other threads run meanwhile.
        (token_ids,) = await asyncio.to_thread(
            self._text.encode_batch, [text], add_special_tokens=add_special_tokens
        )
        return token_ids

    @cached_property
    def _max_characters(self) -> int:
        """More than any text has that fits into the context."""
        longest = max(len(self._text.token_bytes(i)) for i in range(self._text.vocab_size))
        return max(_LONG_TEXT, _SHRINKING * longest * self._context_tokens)
