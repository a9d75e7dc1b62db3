"""Small building blocks of the page: plain HTML elements and line icons."""

from collections.abc import Callable
from html import escape
from typing import Any

from nicegui import ui
from nicegui.element import Element

_PATHS = {
    "plus": "M12 5v14M5 12h14",
    "sliders": (
        "M4 8h8.5M17.5 8H20M4 16h2.5M11.5 16H20M12.5 8a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0"
        "M6.5 16a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0"
    ),
    "theme": "M19.5 14.2A8 8 0 0 1 9.8 4.5a8 8 0 1 0 9.7 9.7z",
    "send": "M12 19V5.5M6 11l6-6 6 6",
    "stop": "M7.5 7.5h9v9h-9z",
    "copy": "M9 9h10v11H9zM6 15H5V4h10v2",
    "again": "M19 12a7 7 0 1 1-2.2-5.1M19 4v4.2h-4.2",
    "beside": "M4 5.5h16v13H4zM12 5.5v13",
    "close": "M6.5 6.5l11 11M17.5 6.5l-11 11",
    "inside": "M4 5.5h16v13H4zM4 12h16M9.3 5.5v13M14.7 5.5v13",
    "document": "M7 3.5h7l4 4v13H7zM10 12h5M10 16h5",
    "quote": "M4 6h16v10.5h-8.5L7.5 20v-3.5H4zM8 9.7h8M8 12.8h5",
    "book": (
        "M12 7C10 5.5 7 5.2 4 5.5V18c3-.3 6 0 8 1.5M12 7c2-1.5 5-1.8 8-1.5V18c-3-.3-6 0-8 1.5zv12.5"
    ),
    "key": "M14.5 9.5m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0M11.5 12.5L5 19v1.5h3V18h2.2",
    "warning": "M12 4.5l8.5 15h-17zM12 10v4.5M12 17v.2",
}

LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" class="logo" aria-hidden="true">'
    '<rect width="32" height="32" rx="8" fill="#12695f"/>'
    '<path d="M16 5.5 26.5 16 16 26.5 5.5 16z" fill="#f0c58a"/>'
    '<path d="M16 5.5 26.5 16H16z" fill="#fbe9cf"/><path d="M16 16v10.5L5.5 16z" fill="#c98b45"/>'
    '<path d="M16 12.2 19.8 16 16 19.8 12.2 16z" fill="#12695f"/></svg>'
)


def icon(name: str) -> str:
    """A drawn line icon as SVG text."""
    return (
        '<svg class="icon" viewBox="0 0 24 24" aria-hidden="true" fill="none" '
        'stroke="currentColor" stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round">'
        f'<path d="{_PATHS[name]}"/></svg>'
    )


def box(classes: str = "", tag: str = "div") -> Element:
    """An empty element to fill: `with box("card"): ...`."""
    return ui.element(tag).classes(classes)


def raw(html: str, classes: str = "", tag: str = "div") -> ui.html:
    """Markup of our own making (never a visitor's or a model's text unescaped)."""
    return ui.html(html, sanitize=False, tag=tag).classes(classes)


def text(content: str, classes: str = "", tag: str = "div") -> ui.html:
    """Plain text."""
    return raw(escape(content), classes, tag)


def button(
    label: str,
    on_click: Callable[..., Any] | None = None,
    *,
    symbol: str | None = None,
    classes: str = "",
    hint: str | None = None,
    js: str | None = None,
) -> ui.html:
    """A button with an icon, a label or both.

    Args:
        hint: for icon buttons, what they do (also for screen readers).
        js: runs in the browser; its `emit(...)` calls `on_click`.
    """
    inner = (icon(symbol) if symbol else "") + (f"<span>{escape(label)}</span>" if label else "")
    element = raw(inner, classes, tag="button")
    element.props("type=button")
    if hint:
        element.props(f'title="{escape(hint)}" aria-label="{escape(hint)}"')
    if js is not None:
        element.on("click", on_click, js_handler=js)
    elif on_click is not None:
        element.on("click", on_click, args=[])
    return element
