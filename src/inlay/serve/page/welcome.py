"""The start screen: what is served here, and four prompts to click."""

from collections.abc import Callable
from html import escape

from nicegui.element import Element

from inlay.serve.page.prompts import Prompt
from inlay.serve.page.talk import Model
from inlay.serve.page.widgets import LOGO, box, icon, raw, text

_REAL = "inlay serve Qwen/Qwen3-30B-A3B"
_SYMBOLS = ("book", "book", "quote", "document")


def welcome(
    model: Model, prompts: tuple[Prompt, ...], on_click: Callable[[Prompt], None]
) -> Element:
    """Draw the start screen; the caller deletes it with the first question."""
    start = box("welcome")
    with start:
        raw(LOGO, "hero")
        text("Ask me what a word means" if model.is_demo else "What can I do for you?", tag="h1")
        raw(
            f"<b>{escape(model.name)}</b>, served by Inlay on {escape(_place(model))}",
            "subtitle",
        )
        if model.is_demo:
            _banner()
        with box("cards"):
            for symbol, prompt in zip(_SYMBOLS, prompts, strict=True):
                _card(prompt, symbol, on_click)
    return start


def _place(model: Model) -> str:
    info = model.info
    return f"this machine's CPU ({info.isa})" if info.device == "cpu" else info.isa


def _card(prompt: Prompt, symbol: str, on_click: Callable[[Prompt], None]) -> None:
    words = len(prompt.document.split()) if prompt.document else 0
    size = f"<small>{words:,} words + a question</small>" if words else ""
    card = raw(
        f"{icon(symbol)}<span><b>{escape(prompt.title)}</b>{size}"
        f"<em>{escape(prompt.caption)}</em></span>",
        "card wide" if words else "card",
        tag="button",
    )
    card.props("type=button").on("click", lambda: on_click(prompt), args=[])


def _banner() -> None:
    with box("banner").props("role=note"):
        raw(
            "<b>This is Inlay's demo model:</b> a tiny one, trained on WordNet, that only defines "
            "English words."
        )
        with box("real"):
            text("To serve a real model:", tag="span")
            command = raw(f"<code>{_REAL}</code>{icon('copy')}", "command", tag="button")
            command.props('type=button title="Copy the command" aria-label="Copy the command"')
            command.on("click", js_handler=f"(e) => inlay.copy('{_REAL}', e.currentTarget)")
