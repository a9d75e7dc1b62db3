"""Who answers: one of the models that are served, or two beside each other.

The browser keeps the choice by name, since other adapters may be served when the page is opened
again.
"""

from collections.abc import Sequence

from nicegui import ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from inlay.serve.page.widgets import box, button, text

_LABELS = ("Who answers", "Who answers, too")


class Choice:
    """The lists in the header, and the button for a second one.

    Args:
        names: the model, and its adapters.

    Attributes:
        chosen: a name for each list, the second one's also while there is but one.
        is_double: both answer the next question.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = list(names)
        self.chosen = [*self._names, *self._names][:2]
        self.is_double = False

    def who(self, number: int) -> str:
        """Who answers by list `number`; nobody is named where there is no choice."""
        return self.chosen[number] if len(self._names) > 1 else ""

    def build(self) -> None:
        """Put the lists here; nothing where there is no choice."""
        if len(self._names) == 1:
            return
        self._client = ui.context.client
        with box("who-answers").props('role=group aria-label="Models"'):
            self._lists = [self._list(number) for number in range(len(_LABELS))]
            self._toggle = button(
                "Side by side",
                self._toggled,
                symbol="beside",
                classes="ghost beside",
                hint="Two models side by side",
            )
        self._toggle.props("aria-pressed=false")
        self._lists[1].set_visibility(False)
        ui.on("who", self._remembered)

    def _list(self, number: int) -> Element:
        with box("choice", tag="select").props(f'aria-label="{_LABELS[number]}"') as made:
            for value, name in enumerate(self._names):
                text(name, tag="option").props(f"value={value}")

        def choose(event: GenericEventArguments) -> None:
            value = int(event.args)
            if 0 <= value < len(self._names):
                self.chosen[number] = self._names[value]
                self._show()

        return made.on("change", choose, js_handler="(e) => emit(e.target.value)")

    def _toggled(self) -> None:
        self.is_double = not self.is_double
        self._show()

    def _remembered(self, event: GenericEventArguments) -> None:
        """What the browser has from before, unless one of them is gone."""
        match event.args:
            case [str(first), str(second), bool(both)] if {first, second} <= {*self._names}:
                self.chosen, self.is_double = [first, second], both
                self._show()

    def _show(self) -> None:
        self._lists[1].set_visibility(self.is_double)
        self._toggle.props(f"aria-pressed={str(self.is_double).lower()}")
        numbers = [self._names.index(name) for name in self.chosen]
        self._client.run_javascript(f"inlay.chosen({numbers}, {str(self.is_double).lower()})")
