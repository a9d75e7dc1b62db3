"""One of those who answer: its conversation, and the answer that runs."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from nicegui import background_tasks
from nicegui.element import Element

from inlay.core.errors import InlayError
from inlay.serve.page.answer import AnswerView
from inlay.serve.page.conversation import Conversation, Sampling, Turn
from inlay.serve.page.figures import compared
from inlay.serve.page.notices import notice
from inlay.serve.page.talk import answer
from inlay.serve.service import Service

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a side needs of its page.

    Attributes:
        on_taken: the engine has taken a question on.
        on_change: an answer was begun, or is over.
        on_new: the visitor wants a new chat.
    """

    service: Service
    sampling: Sampling
    on_taken: Callable[[], None]
    on_change: Callable[[], None]
    on_new: Callable[[], None]


class Side:
    """Owns one conversation and at most one running answer.

    Args:
        who: names the model at each question; an empty name where there is but one.
        conversation: to go on with.
    """

    def __init__(
        self,
        page: Surroundings,
        who: Callable[[], str],
        *,
        conversation: Conversation | None = None,
    ) -> None:
        self._page, self._who = page, who
        self.conversation = conversation or Conversation()
        self._views: list[AnswerView] = []
        self._running: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """An answer is on its way."""
        return self._running is not None

    def ask(self, turn: Turn, slot: Element, *, has_stop: bool) -> None:
        """Answer a turn that was begun in this conversation.

        Args:
            slot: where in the page.
            has_stop: the answer gets a button of its own that stops it.
        """
        self.settle()
        turn.answer.model = self._who()
        wait = "reading the document" if turn.document else "reading"
        info = self._page.service.info
        with slot:
            view = AnswerView(turn.answer, page_tokens=info.page_tokens, wait=wait)
        if has_stop:
            view.offer_stop(self.stop)
        self._views.append(view)
        self._running = background_tasks.create(
            self._stream(turn, view, partial(self._again, slot, has_stop)),
            name="chat page answer",
            handle_exceptions=False,
        )
        self._page.on_change()

    def settle(self) -> None:
        """No answer of it can be asked again any more."""
        for view in self._views:
            view.settle()

    def stop(self) -> None:
        """Cancel the running answer, in the engine too; what came stays."""
        if self._running is not None:
            self._running.cancel()

    def leave(self) -> None:
        """Cancel the running answer; it is not shown any more."""
        self.stop()
        self._running = None

    async def _stream(self, turn: Turn, view: AnswerView, again: Callable[[], None]) -> None:
        me = asyncio.current_task()
        failure: Exception | None = None
        said, sampling = turn.answer, self._page.sampling
        messages = self.conversation.messages(sampling.system)
        try:
            async with aclosing(answer(self._page.service, messages, sampling, said)) as changes:
                async for _ in changes:
                    if said.completion_tokens == 0:
                        self._page.on_taken()
                    view.changed()
        except asyncio.CancelledError:
            said.stopped = True
        except Exception as error:
            if not isinstance(error, InlayError):
                _log.exception("the chat page failed while it streamed an answer")
            failure = error
        if self._running is not me or view.box.client.is_deleted:
            view.forget()  # a new chat was begun, or the visitor left
            return
        self._running = None
        view.finish(on_again=None if failure else again, note=self._gain(turn))
        if failure is not None:
            view.fail(notice(failure), on_new=self._page.on_new, on_retry=again)
        self._page.on_change()

    def _again(self, slot: Element, has_stop: bool) -> None:
        """Ask the last question once more, in place of its answer."""
        if not self.is_running:
            self._views.pop().box.delete()
            self.ask(self.conversation.again(), slot, has_stop=has_stop)

    def _gain(self, turn: Turn) -> str | None:
        """Compare with the first question about the same document."""
        for earlier in self.conversation.turns:
            if earlier is not turn and turn.document and earlier.document == turn.document:
                return compared(earlier.answer, turn.answer)
        return None
