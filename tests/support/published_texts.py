"""What Inlay and transformers make of published tokenizers and chat templates.

What transformers made of them once stands in tests/golden/published_texts.json, which

    python -m tests.support.published_texts

writes again.
"""

import asyncio
import hashlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, tzinfo
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self
from unittest import mock

import msgspec

from inlay.core.errors import RequestError
from inlay.models.text import Text
from inlay.serve.openai.message_form import MessageForm, find_form
from inlay.serve.openai.protocol import ChatRequest
from inlay.serve.openai.tools import plan_tools
from inlay.serve.parsers import choose_dialect
from inlay.serve.prompts import Prompts
from tests.support.published_chats import CONVERSATIONS, Body, as_clients_send
from tests.support.published_files import TOKENIZERS, fetch_llama_cpp, fetch_tokenizer
from tests.support.real_models import TEXTS
from tests.support.tiny_tokenizers import write_tokenizer

RECORDED = Path(__file__).parents[1] / "golden" / "published_texts.json"
# Markers of the tokenizers, written out in a text.
MARKED = (
    "<|im_start|>user\nHi<|im_end|>\n<think>\n\n</think>\n<tool_call>",
    "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|><|call|><|return|>",
    "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜><think>Hm.<｜end▁of▁sentence｜>",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi <|eot_id|> <|python_tag|>",
    "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
)
ALL_TEXTS = (*TEXTS, *MARKED)

Render = Callable[[Body], object]
Chats = dict[str, str | None]


def digest(made: object) -> str:
    """Return what stands for a text or token ids in the record."""
    return hashlib.sha256(json.dumps(made).encode()).hexdigest()[:12]


def chats(render: Render, refusal: type[Exception]) -> Chats:
    """Return the digest of each conversation as `render` writes it, None where that is refused."""
    found: Chats = {}
    for name, body in CONVERSATIONS.items():
        try:
            found[name] = digest(render(body))
        except refusal:
            found[name] = None
    return found


def llama_cpp_templates() -> dict[str, str]:
    """Read the chat templates of llama.cpp's source, by their names."""
    files = sorted((fetch_llama_cpp() / "templates").iterdir())
    return {file.stem: file.read_text("utf-8") for file in files}


def with_small_vocabulary(directory: Path, template: str) -> Text:
    """Load a template beside a tokenizer of a few tokens, which is written where it is missing."""
    if not (directory / "tokenizer.json").exists():
        write_tokenizer(directory, "sentencepiece")
    return Text.load(directory, chat_template=template)


class ServedChats:
    """Writes chats as the server does, for a tokenizer and its template."""

    def __init__(self, text: Text) -> None:
        self._prompts = Prompts(text, choose_dialect(text.chat_template), context_tokens=1 << 20)

    def text(self, body: Body) -> str:
        """Return the prompt as text."""
        return self._prompt(body)[0]

    def tokens(self, body: Body) -> list[int]:
        """Return the prompt as token ids."""
        return self._prompt(body)[1]

    def _prompt(self, body: Body) -> tuple[str, list[int]]:
        request = msgspec.convert(as_clients_send(body), ChatRequest)
        plan = plan_tools(request.tools, request.tool_choice, request.parallel_tool_calls)
        return asyncio.run(self._prompts.render(request, plan))


class _FixedDay(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 1, 2, 3, 4, 5, tzinfo=tz)


@contextmanager
def fixed_day(module: str) -> Iterator[None]:
    """Let the templates that a module renders write one and the same day."""
    with mock.patch(f"{module}.datetime", _FixedDay):
        yield


def _reason(form: MessageForm, body: Body) -> str | None:
    """Say why Inlay writes a conversation otherwise than transformers, None where it should not."""
    tools = body.get("tools", [])
    calls = any("tool_calls" in message for message in body["messages"])
    reasons = {
        "The template has no place for tools, so Inlay describes them in a message.": (
            tools and not form.shows_tools
        ),
        "The template reads what tools may leave out, so Inlay adds it, empty.": (
            tools != [form.tool(tool) for tool in tools]
        ),
        "The template knows no role 'tool', so Inlay writes results as the user's text.": (
            calls and not form.shows_results
        ),
        "The template leaves calls out, so Inlay writes them as text in the model's notation.": (
            calls and not form.shows_calls
        ),
        "The template takes arguments as JSON text only, so Inlay gives it that.": (
            calls and not form.arguments_as_json
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _differences(text: Text, served: Chats, reference: Chats) -> dict[str, str]:
    """Find the conversations that Inlay writes otherwise, each with the reason."""
    form = find_form(text.render_chat)
    found = {}
    for name in CONVERSATIONS:
        if served[name] != reference[name]:
            reason = _reason(form, CONVERSATIONS[name])
            if reason is None:
                raise SystemExit(f"{name!r} differs without a reason: {form}\n{text.chat_template}")
            found[name] = reason
    return found


def _of_template(text: Text) -> tuple[Chats, dict[str, str]]:
    """Return what transformers' renderer writes, and which conversations differ."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def render(body: Body) -> object:
        (written,), _ = render_jinja_template(
            [body["messages"]],
            tools=body.get("tools"),
            chat_template=text.chat_template,
            add_generation_prompt=body.get("add_generation_prompt", True),
            **text.special_tokens,
            **body.get("chat_template_kwargs", {}),
        )
        return written

    reference = chats(render, Exception)  # a template's expressions raise whatever they want
    return reference, _differences(text, chats(ServedChats(text).text, RequestError), reference)


def _of_tokenizer(directory: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what transformers makes of a tokenizer, and which conversations differ."""
    from transformers import AutoTokenizer

    theirs, ours = AutoTokenizer.from_pretrained(directory), Text.load(directory)
    whole = [theirs.encode(text) for text in ALL_TEXTS]
    bare = [theirs.encode(text, add_special_tokens=False) for text in ALL_TEXTS]
    found: dict[str, Any] = {
        "tokens": [digest(ids) for ids in whole],
        "tokens without special": [digest(ids) for ids in bare],
        "texts": [digest(theirs.decode(ids)) for ids in whole],
        "texts without special": [
            digest(theirs.decode(ids, skip_special_tokens=True)) for ids in whole
        ],
    }
    if ours.chat_template is None:
        return found, {}

    def render(body: Body) -> object:
        return theirs.apply_chat_template(
            body["messages"],
            tools=body.get("tools"),
            add_generation_prompt=body.get("add_generation_prompt", True),
            return_dict=False,
            **body.get("chat_template_kwargs", {}),
        )

    found["chats"] = chats(render, Exception)
    served = chats(ServedChats(ours).tokens, RequestError)
    return found, _differences(ours, served, found["chats"])


@fixed_day("inlay.models.chat_template")
@fixed_day("transformers.utils.chat_template_utils")
def main() -> None:
    """Write the record again."""
    tokenizers, templates = {}, {}
    differs: dict[str, dict[str, list[str]]] = {}

    def add(name: str, reasons: Mapping[str, str]) -> None:
        for conversation, reason in reasons.items():
            differs.setdefault(reason, {}).setdefault(name, []).append(conversation)

    with TemporaryDirectory() as small:
        for name in TOKENIZERS:
            tokenizers[name], reasons = _of_tokenizer(fetch_tokenizer(name))
            add(name, reasons)
        for name, source in llama_cpp_templates().items():
            templates[name], reasons = _of_template(with_small_vocabulary(Path(small), source))
            add(name, reasons)
    versions = [f"{each} {importlib.metadata.version(each)}" for each in ("transformers", "jinja2")]
    record = {
        "made_by": "python -m tests.support.published_texts",
        "with": ", ".join(versions),
        "digests": "the first 12 digits of the SHA-256 of token ids, or of a text, in JSON; "
        "null where the template refuses the conversation",
        "differs": differs,
        "tokenizers": tokenizers,
        "templates": templates,
    }
    RECORDED.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
