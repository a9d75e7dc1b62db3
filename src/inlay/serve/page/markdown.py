"""A model's Markdown as HTML that is safe to show.

Raw HTML appears as text, pictures become links (nothing is loaded from outside), and links open in
a new tab without telling where they came from.
"""

from collections.abc import MutableMapping, Sequence
from functools import cache
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import OptionsDict
from pygments import highlight  # type: ignore[import-untyped]
from pygments.formatters import HtmlFormatter  # type: ignore[import-untyped]
from pygments.lexers import get_lexer_by_name  # type: ignore[import-untyped]
from pygments.util import ClassNotFound  # type: ignore[import-untyped]


class _Renderer(RendererHTML):
    """Differs from the standard one in links, pictures and tables."""

    def link_open(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]
    ) -> str:
        tokens[idx].attrSet("target", "_blank")
        tokens[idx].attrSet("rel", "noopener noreferrer")
        return self.renderToken(tokens, idx, options, env)

    def image(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]
    ) -> str:
        token = tokens[idx]
        target = escape(str(token.attrGet("src") or ""))
        return (
            f'<a href="{target}" target="_blank" rel="noopener noreferrer">'
            f"{escape(token.content or target)}</a>"
        )

    def table_open(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]
    ) -> str:
        return '<div class="table"><table>'

    def table_close(
        self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: MutableMapping[str, Any]
    ) -> str:
        return "</table></div>"


def _highlight(code: str, language: str, _attributes: str) -> str:
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""  # the parser then escapes the code itself
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))


@cache
def _parser() -> MarkdownIt:
    options = {"html": False, "breaks": True, "highlight": _highlight}
    return MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable(
        ["table", "strikethrough"]
    )


def to_html(text: str) -> str:
    """Render Markdown; unfinished Markdown gives its best guess."""
    return str(_parser().render(text))
