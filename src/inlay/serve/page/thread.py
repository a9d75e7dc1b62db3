"""How a question looks, and where its answers go."""

from html import escape

from nicegui.element import Element

from inlay.serve.page.conversation import Turn
from inlay.serve.page.markdown import to_html
from inlay.serve.page.widgets import box, icon, raw, text


def question(turn: Turn, num_answers: int) -> list[Element]:
    """Draw a question; returns a slot for each answer, beside each other."""
    with box("turn"):
        with box("question"):
            if turn.document is not None:
                _document(turn.document)
            text(turn.question, "bubble")
        with box("answers beside" if num_answers > 1 else "answers"):
            return [box("side") for _ in range(num_answers)]


def _document(document: str) -> None:
    title = document.splitlines()[0].lstrip("# ")
    raw(
        f"<summary>{icon('document')}<span>{escape(title)}</span>"
        f"<small>{len(document.split()):,} words</small></summary>"
        f"<div>{to_html(document)}</div>",
        "document",
        tag="details",
    )
