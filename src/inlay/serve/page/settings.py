"""The drawer with system prompt and sampling settings."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from nicegui import ui
from nicegui.element import Element

from inlay.serve.page.conversation import Sampling
from inlay.serve.page.widgets import box, button, text

_VALUE = "(e) => emit(e.target.value)"


class SettingsDrawer:
    """Edits a `Sampling` in place; wrong input leaves the last good value."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._open = False
        self._shade = box("shade").on("click", self.toggle, args=[])
        self._drawer = box("drawer", tag="aside").props('aria-label="Settings" id=settings inert')
        self._drawer.on("keydown.esc", self.toggle, args=[])
        with self._drawer:
            with box("drawer-head"):
                text("Settings", tag="h2")
                button("", self.toggle, symbol="close", classes="ghost", hint="Close settings")
            self._text()
            self._slider("Temperature", "temperature", "0 always takes the likeliest token", 0, 2)
            self._slider("Top p", "top_p", "Keep the likeliest tokens up to this share", 0.05, 1)
            self._number("Max tokens", "max_tokens", "to the end of the context", minimum=1)
            self._number("Seed", "seed", "a new one each time", minimum=0)
            text("In force from the next answer on. Same seed, same settings: same answer.", "hint")

    def toggle(self) -> None:
        """Open or close."""
        self._open = not self._open
        for element in (self._drawer, self._shade):
            element.classes(toggle="open")
        if self._open:
            self._drawer.props(remove="inert")
        else:
            self._drawer.props("inert")

    def _text(self) -> None:
        with _field("System prompt"):
            area = ui.element("textarea").props(
                'rows=4 placeholder="Instructions in front of every conversation"'
            )
            self._on_input(area, "system", str)

    def _slider(self, label: str, name: str, hint: str, minimum: float, maximum: float) -> None:
        value = getattr(self.sampling, name)
        with _field(label, hint) as head:
            with head:
                shown = text(f"{value:g}", "value", tag="output")
            slider = ui.element("input").props(
                f"type=range min={minimum} max={maximum} step=0.05 value={value}"
            )

        def convert(entered: str) -> float:
            return min(maximum, max(minimum, float(entered)))

        self._on_input(slider, name, convert, lambda value: shown.set_content(f"{value:g}"))

    def _number(self, label: str, name: str, blank: str, minimum: int) -> None:
        with _field(label):
            number = ui.element("input").props(
                f'type=number inputmode=numeric min={minimum} step=1 placeholder="{blank}"'
            )

        def convert(entered: str) -> int | None:
            return max(minimum, int(entered)) if entered.strip() else None

        self._on_input(number, name, convert)

    def _on_input(
        self,
        element: Element,
        name: str,
        convert: Callable[[str], Any],
        show: Callable[[Any], object] | None = None,
    ) -> None:
        def change(event: Any) -> None:
            try:
                value = convert(str(event.args))
            except ValueError:
                return
            setattr(self.sampling, name, value)
            if show is not None:
                show(value)

        element.on("input", change, js_handler=_VALUE, throttle=0.1)


@contextmanager
def _field(label: str, hint: str = "") -> Iterator[Element]:
    """A label around the control that is made inside; gives the label's line."""
    with box("field", tag="label"):
        head = box("label", tag="span")
        with head:
            text(label, tag="b")
        yield head
        if hint:
            text(hint, "hint", tag="span")
