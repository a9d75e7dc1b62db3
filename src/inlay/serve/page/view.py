"""The chat page of one visitor: layout, and what happens on every click."""

import asyncio
import logging
from contextlib import aclosing

from nicegui import background_tasks, ui
from nicegui.element import Element
from nicegui.events import GenericEventArguments

from inlay.core.errors import InlayError
from inlay.serve.page.conversation import Conversation, Turn
from inlay.serve.page.figures import compared
from inlay.serve.page.notices import notice
from inlay.serve.page.prompts import Prompt, prompts
from inlay.serve.page.settings import SettingsDrawer
from inlay.serve.page.status import LiveStatus
from inlay.serve.page.talk import answer, model_of, sampling_of
from inlay.serve.page.thread import TurnView
from inlay.serve.page.welcome import welcome
from inlay.serve.page.widgets import LOGO, box, button, raw, text
from inlay.serve.service import Service

_GONE_S = 5.0  # a visitor away for so long has left: the answer is cancelled
_log = logging.getLogger(__name__)


class ChatPage:
    """Owns the visitor's conversation and at most one running answer."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.model = model_of(service)
        self.prompts = prompts(is_demo=self.model.is_demo)
        self.sampling = sampling_of(service)
        self._reset()

    def _reset(self) -> None:
        self.conversation = Conversation()
        self.views: list[TurnView] = []
        self.running: asyncio.Task[None] | None = None
        self.next_question: dict[str, int] = {}

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
        ui.on("visible", lambda event: self.status.watch(bool(event.args)))
        self._welcome()
        self.client.run_javascript("inlay.start()")

    def _header(self) -> None:
        with box(tag="header"):
            raw(f"{LOGO}<b>Inlay</b>", "brand")
            text(self.model.name, "model").props(f'title="{self.model.info.architecture}"')
            if self.service.adapters:
                self._choice()
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

    def _choice(self) -> None:
        """Who answers from now on: the model, or one of its adapters."""
        names = [self.model.name, *self.service.adapters]
        with box("choice", tag="select").props('id=choice aria-label="Who answers"') as choice:
            for number, name in enumerate(names):
                text(name, tag="option").props(f"value={number}")

        def choose(event: GenericEventArguments) -> None:
            number = int(event.args)
            if 0 <= number < len(names):
                self.sampling.model = names[number] if number else None

        choice.on("change", choose, js_handler="(e) => emit(e.target.value)")

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
        if self.running is not None:
            return
        asked = self.next_question.get(prompt.title, 0)
        self.next_question[prompt.title] = asked + 1
        question = prompt.questions[asked % len(prompt.questions)]
        self.ask(question, document=prompt.document)

    def _typed(self, event: object) -> None:
        question = str(getattr(event, "args", "")).strip()
        if question:
            self.ask(question)

    def ask(self, question: str, *, document: str | None = None) -> None:
        """Begin a turn with `question`."""
        if self.running is not None:
            return
        if self.start is not None:
            self.start.delete()
            self.start = None
        for view in self.views:
            view.settle()
        self._run(self.conversation.ask(question, document=document))

    def again(self) -> None:
        """Ask the last question once more, in place of its answer."""
        if self.running is not None or not self.views:
            return
        self.views.pop().box.delete()
        self._run(self.conversation.again())

    def new_chat(self) -> None:
        """Forget the conversation; a running answer is cancelled."""
        self.stop()
        self._reset()
        self._set_busy(False)
        self.thread.clear()
        self._welcome()
        self.client.run_javascript("inlay.focus()")

    def stop(self) -> None:
        """Cancel the running answer, in the engine too; what came stays."""
        if self.running is not None:
            self.running.cancel()

    async def _stop_when_gone(self) -> None:
        await asyncio.sleep(_GONE_S)
        if not self.client.has_socket_connection:
            self.stop()

    def _run(self, turn: Turn) -> None:
        wait = "reading the document" if turn.document else "reading"
        with self.thread:
            if turn.fresh and len(self.conversation.turns) > 1:
                text("The document is asked on its own, without what came before", "divider")
            view = TurnView(turn, page_tokens=self.model.info.page_tokens, wait=wait)
        self.views.append(view)
        self._set_busy(True)
        self.client.run_javascript("inlay.toEnd(); inlay.focus()")
        self.running = background_tasks.create(
            self._stream(turn, view), name="chat page answer", handle_exceptions=False
        )

    async def _stream(self, turn: Turn, view: TurnView) -> None:
        me = asyncio.current_task()
        failure: Exception | None = None
        messages = self.conversation.messages(self.sampling.system)
        try:
            async with aclosing(
                answer(self.service, messages, self.sampling, turn.answer)
            ) as changes:
                async for _ in changes:
                    if turn.answer.completion_tokens == 0:  # taken on: show it at once
                        background_tasks.create(self.status.refresh(), name="chat page status")
                    view.changed()
        except asyncio.CancelledError:
            turn.answer.stopped = True
        except Exception as error:
            if not isinstance(error, InlayError):
                _log.exception("the chat page failed while it streamed an answer")
            failure = error
        if self.running is not me or self.client.is_deleted:
            view.forget()  # a new chat was begun, or the visitor left
            return
        self.running = None
        view.finish(on_again=None if failure else self.again, note=self._gain(turn))
        if failure is not None:
            view.fail(notice(failure), on_new=self.new_chat, on_retry=self.again)
        self._set_busy(False)
        self._show_chips()
        await self.status.refresh()

    def _gain(self, turn: Turn) -> str | None:
        """Compare with the first question about the same document."""
        for earlier in self.conversation.turns:
            if earlier is not turn and turn.document and earlier.document == turn.document:
                return compared(earlier.answer, turn.answer)
        return None

    def _set_busy(self, busy: bool) -> None:
        self.send.set_visibility(not busy)
        self.stop_button.set_visibility(busy)
        self.client.run_javascript(f"document.body.dataset.busy = '{int(busy)}'")
