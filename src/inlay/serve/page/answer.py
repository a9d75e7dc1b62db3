"""How one answer looks: streaming text, figures, the inside, and what went wrong."""

import asyncio
import json
from collections.abc import Callable
from html import escape

from nicegui.element import Element

from inlay.serve.page.conversation import Answer
from inlay.serve.page.figures import figures
from inlay.serve.page.inside import inside
from inlay.serve.page.markdown import to_html
from inlay.serve.page.notices import Notice
from inlay.serve.page.widgets import LOGO, box, button, icon, raw, text

_FRAME_S = 0.05  # between two pictures of a growing answer; longer texts wait longer


class AnswerView:
    """One answer in the thread. `changed` while it grows, `finish` at its end."""

    def __init__(self, answer: Answer, *, page_tokens: int, wait: str) -> None:
        self.answer = answer
        self.page_tokens = page_tokens
        self._drawing: asyncio.TimerHandle | None = None
        self._details: Element | None = None
        self._while_last: list[Element] = []  # buttons that act on the last turn
        self.box = box("answer busy").props("role=group")
        if answer.model:
            self.box.props(f'aria-label="{escape(answer.model)} answers"')
        with self.box:
            raw(LOGO, "mark")
            with box("body"):
                text(answer.model, "who")
                self._reasoning = raw("", "reasoning")
                self._text = raw(_waiting(wait), "markdown")
                self._notice = box("slot")
                self._foot = box("foot")

    def offer_stop(self, on_stop: Callable[[], object]) -> None:
        """A button that stops this answer alone, until it ends."""
        with self._foot:
            hint = f"Stop {self.answer.model}"
            button("Stop", on_stop, symbol="stop", classes="chip stop-one", hint=hint)

    def changed(self) -> None:
        """Show what has come, at most once per frame."""
        if self._drawing is None:
            long = len(self.answer.text) * 5e-6
            self._drawing = asyncio.get_running_loop().call_later(_FRAME_S + long, self.draw)

    def draw(self) -> None:
        """Show what has come, now."""
        self.forget()
        answer = self.answer
        if answer.text:
            self._text.set_content(to_html(answer.text))
        if answer.reasoning:
            state = "" if answer.text else " open"
            self._reasoning.set_content(
                f"<details{state}><summary>Thinking</summary>"
                f"<div>{to_html(answer.reasoning)}</div></details>"
            )

    def finish(self, *, on_again: Callable[[], object] | None, note: str | None = None) -> None:
        """The answer is complete, or stopped: draw it a last time and add what is below it."""
        self.draw()
        answer = self.answer
        self.box.classes(remove="busy")
        if not answer.text:
            empty = "Stopped before the first word." if answer.stopped else ""
            self._text.set_content(f"<p class=quiet>{empty}</p>" if empty else "")
        self._foot.clear()
        with self._foot:
            if note is not None:
                text(note, "gain")
            self._figures()
            with box("tools"):
                if answer.trace is not None or answer.times is not None:
                    self._toggle = button("inside", self._inside, symbol="inside", classes="chip")
                    self._toggle.props("aria-expanded=false")
                if answer.text:
                    button(
                        "",
                        symbol="copy",
                        classes="ghost small copy",
                        hint="Copy",
                        js=f"(e) => inlay.copy({json.dumps(answer.text)}, e.currentTarget)",
                    )
                if on_again is not None:
                    again = button(
                        "", on_again, symbol="again", classes="ghost small", hint="Regenerate"
                    )
                    self._while_last.append(again)

    def settle(self) -> None:
        """A newer turn follows: this one cannot be asked again any more."""
        for element in self._while_last:
            element.set_visibility(False)

    def forget(self) -> None:
        """Cancel a picture that is due; also when the turn was taken from the page."""
        if self._drawing is not None:
            self._drawing.cancel()
            self._drawing = None

    def _figures(self) -> None:
        answer = self.answer
        parts = [
            f'<li title="{escape(figure.meaning)}" data-figure="{figure.label}">'
            f"<span>{figure.label}</span> <b>{escape(figure.value)}</b></li>"
            for figure in figures(answer)
        ]
        if answer.stopped:
            parts.append('<li class="mark-stopped"><b>stopped</b></li>')
        elif answer.finish_reason == "length":
            parts.append(
                '<li title="Reached max tokens or the end of the context"><b>cut at the '
                "limit</b></li>"
            )
        if parts:
            raw("".join(parts), "figures", tag="ul")

    def _inside(self) -> None:
        is_open = self._details is not None
        self._toggle.props(f"aria-expanded={'false' if is_open else 'true'}")
        if self._details is not None:
            self._details.delete()
            self._details = None
            return
        with self._foot:
            self._details = raw(inside(self.answer, self.page_tokens), "inside")

    def fail(
        self, notice: Notice, *, on_new: Callable[[], object], on_retry: Callable[[], object]
    ) -> None:
        """Show an error where the answer would be."""
        with self._notice, box("notice").props("role=alert"):
            raw(icon("warning"), "notice-icon")
            with box("notice-text"):
                text(notice.title, tag="b")
                text(notice.text)
                if notice.hint:
                    text(notice.hint, "hint")
                with box("notice-actions"):
                    if notice.new_chat:
                        button("New chat", on_new, classes="solid")
                    if notice.retry:
                        self._while_last.append(button("Try again", on_retry, classes="solid"))


def _waiting(words: str) -> str:
    return f'<p class="waiting"><i></i><i></i><i></i><span>{escape(words)}</span></p>'
