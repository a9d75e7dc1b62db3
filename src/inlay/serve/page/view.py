"""The chat page of one visitor: layout, and what happens on every click."""

import asyncio
from functools import partial

from nicegui import background_tasks, ui
from nicegui.element import Element

from inlay.serve.page.choice import Choice
from inlay.serve.page.prompts import Prompt, prompts
from inlay.serve.page.settings import SettingsDrawer
from inlay.serve.page.side import Side, Surroundings
from inlay.serve.page.status import LiveStatus
from inlay.serve.page.talk import model_of, sampling_of
from inlay.serve.page.thread import question
from inlay.serve.page.welcome import welcome
from inlay.serve.page.widgets import LOGO, box, button, raw, text
from inlay.serve.service import Service

_GONE_S = 5.0  # a visitor away for so long has left: the answer is cancelled


class ChatPage:
    """Owns the visitor's chat: one side, or two that are asked together."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.model = model_of(service)
        self.prompts = prompts(is_demo=self.model.is_demo)
        self.sampling = sampling_of(service)
        self.choice = Choice([self.model.name, *service.adapters])
        self.surroundings = Surroundings(
            service=service,
            sampling=self.sampling,
            on_taken=self._refresh,
            on_change=self._changed,
            on_new=self.new_chat,
        )
        self._reset()

    def _reset(self) -> None:
        self.sides = [Side(self.surroundings, partial(self.choice.who, 0))]
        self.next_question: dict[str, int] = {}

    @property
    def is_running(self) -> bool:
        """An answer is on its way."""
        return any(side.is_running for side in self.sides)

    async def build(self) -> None:
        """Draw the page into the current client."""
        self.client = ui.context.client
        self.client.on_disconnect(self._stop_when_gone)
        self.status = LiveStatus(self.service)
        with box("shell"):
            self._header()
            with box("thread").props("id=thread"):
                self.thread = box("column").props('role=log aria-label="Conversation"')
            self._composer()
        self.settings = SettingsDrawer(self.sampling)
        ui.on("stop", self.stop)
        ui.on("visible", lambda event: self.status.watch(bool(event.args)))
        self._welcome()
        self.client.run_javascript("inlay.start()")

    def _header(self) -> None:
        with box(tag="header"):
            raw(f"{LOGO}<b>Inlay</b>", "brand")
            text(self.model.name, "model").props(f'title="{self.model.info.architecture}"')
            self.choice.build()
            box("spring")
            self.status.header()
            raw('<a class="ghost" href="/dashboard"><span>Dashboard</span></a>')
            button("New chat", self.new_chat, symbol="plus", classes="ghost", hint="New chat")
            button(
                "",
                symbol="theme",
                classes="ghost",
                hint="Light or dark",
                js="() => inlay.toggleDark()",
            )
            button(
                "",
                lambda: self.settings.toggle(),  # it is made after the header
                symbol="sliders",
                classes="ghost",
                hint="Settings",
            )

    def _composer(self) -> None:
        take = "const text = inlay.take(); if (text !== null) emit(text);"
        with box(tag="footer"):
            self.chips = box("chips")
            with box("composer"):
                field = ui.element("textarea").props(
                    'id=composer rows=1 aria-label="Message" enterkeyhint=send '
                    f'placeholder="{self._placeholder()}"'
                )
                field.on(
                    "keydown",
                    self._typed,
                    js_handler="(e) => { if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) "
                    f"{{ e.preventDefault(); {take} }} }}",
                )
                field.on("input", js_handler="(e) => inlay.grow(e.target)")
                self.send = button(
                    "",
                    self._typed,
                    symbol="send",
                    classes="round send",
                    hint="Send",
                    js=f"() => {{ {take} }}",
                )
                self.stop_button = button(
                    "", self.stop, symbol="stop", classes="round stop", hint="Stop"
                )
                self.stop_button.set_visibility(False)
            with box("footline"):
                self.status.footer()

    def _placeholder(self) -> str:
        return "Ask what an English word means" if self.model.is_demo else "Write a message"

    def _welcome(self) -> None:
        with self.thread:
            self.start: Element | None = welcome(self.model, self.prompts, self.click)
        self.chips.clear()

    def _show_chips(self) -> None:
        self.chips.clear()
        with self.chips:
            for prompt in self.prompts:
                self._chip(prompt)

    def _chip(self, prompt: Prompt) -> None:
        asked = self.next_question.get(prompt.title, 0)
        label = prompt.title
        if prompt.document is not None and asked:
            label = f"Ask the same document: {prompt.questions[asked % len(prompt.questions)]}"
        chip = button(label, lambda: self.click(prompt), classes="chip")
        if prompt.document is not None:
            chip.classes("again-document" if asked else "ask-document")

    def click(self, prompt: Prompt) -> None:
        """A prompt was clicked: ask its next question."""
        if self.is_running:
            return
        asked = self.next_question.get(prompt.title, 0)
        self.next_question[prompt.title] = asked + 1
        self.ask(prompt.questions[asked % len(prompt.questions)], document=prompt.document)

    def _typed(self, event: object) -> None:
        asked = str(getattr(event, "args", "")).strip()
        if asked:
            self.ask(asked)

    def ask(self, asked: str, *, document: str | None = None) -> None:
        """Begin a turn on every side."""
        if self.is_running:
            return
        if self.start is not None:
            self.start.delete()
            self.start = None
        self._match_sides()
        turns = [side.conversation.ask(asked, document=document) for side in self.sides]
        with self.thread:
            if turns[0].fresh and len(self.sides[0].conversation.turns) > 1:
                text("The document is asked on its own, without what came before", "divider")
            slots = question(turns[0], len(turns))
        for side, turn, slot in zip(self.sides, turns, slots, strict=True):
            side.ask(turn, slot, has_stop=len(slots) > 1)
        self.client.run_javascript("inlay.toEnd(); inlay.focus()")

    def _match_sides(self) -> None:
        """One side or two, as was chosen; a second one goes on from what the first one knows."""
        while len(self.sides) > 1 + self.choice.is_double:
            self.sides.pop().settle()
        if len(self.sides) < 1 + self.choice.is_double:
            so_far = self.sides[0].conversation.copy()
            self.sides.append(
                Side(self.surroundings, partial(self.choice.who, 1), conversation=so_far)
            )

    def new_chat(self) -> None:
        """Forget the conversation; running answers are cancelled."""
        for side in self.sides:
            side.leave()
        self._reset()
        self._show_busy()
        self.thread.clear()
        self._welcome()
        self.client.run_javascript("inlay.focus()")

    def stop(self) -> None:
        """Cancel running answers, in the engine too; what came stays."""
        for side in self.sides:
            side.stop()

    async def _stop_when_gone(self) -> None:
        await asyncio.sleep(_GONE_S)
        if not self.client.has_socket_connection:
            self.stop()

    def _changed(self) -> None:
        self._show_busy()
        if not self.is_running:
            self._show_chips()
            self._refresh()

    def _refresh(self) -> None:
        background_tasks.create(self.status.refresh(), name="chat page status")

    def _show_busy(self) -> None:
        busy = self.is_running
        self.send.set_visibility(not busy)
        self.stop_button.set_visibility(busy)
        self.client.run_javascript(f"document.body.dataset.busy = '{int(busy)}'")
