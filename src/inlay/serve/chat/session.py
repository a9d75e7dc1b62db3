"""The chat itself: read, answer, show figures, until the end. Several may share a terminal.

The event loop runs in a thread of its own, so that the main thread can wait for input and Python's
Ctrl-C reaches it at any time: while an answer streams it stops that answer and nothing else.
"""

import asyncio
import sys
import threading
from collections.abc import Coroutine, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import uvloop

from inlay.core.errors import EngineError, InlayError
from inlay.serve.chat.backends import Backend
from inlay.serve.chat.conversation import Conversation
from inlay.serve.chat.slash import Outcome, Then, is_command, run_command
from inlay.serve.chat.terminal import Terminal
from inlay.serve.chat.timing import AnswerTiming, format_seconds

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread; `run` waits for a coroutine and passes Ctrl-C on to it."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the loop and return its result; Ctrl-C cancels the work, then is raised."""
        finished = threading.Event()

        async def watched() -> T:
            try:
                return await work
            except Exception:
                # Ctrl-C may end an engine that has just begun, too; nobody asks for that error.
                if future.cancelled():
                    raise asyncio.CancelledError from None
                raise
            finally:
                finished.set()

        future = asyncio.run_coroutine_threadsafe(watched(), self.loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            finished.wait(5)  # what it held must be free before anything else begins
            raise

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


class Session:
    """One chat with one backend.

    Attributes:
        title: stands above each answer where several sessions share a terminal; empty: none does.
        failed: an answer ended with an error.
    """

    def __init__(
        self,
        backend: Backend,
        terminal: Terminal,
        runner: LoopThread,
        *,
        conversation: Conversation | None = None,
        title: str = "",
    ) -> None:
        self._backend = backend
        self._terminal = terminal
        self._runner = runner
        self._answers = 0
        self._totals = AnswerTiming()
        self._prompt_s = self._output_s = 0.0
        self.title = title
        self.conversation = conversation or Conversation()
        self.failed = False

    def ask(self, message: str) -> None:
        """Have a message answered. Raises as `answer`."""
        self.conversation.ask(message)
        self.answer()

    def answer(self) -> None:
        """Have the last message answered.

        Raises:
            EngineError: no further message can be answered.
        """
        self.show(())
        try:
            self._answer()
        except EngineError:
            raise
        except InlayError as error:
            self.failed = True
            print(f"error: {error}", file=sys.stderr, flush=True)

    def obey(self, command: str) -> Outcome | InlayError:
        """Carry out a command as far as the conversation goes; an error says why not."""
        try:
            return run_command(command, self.conversation, self.title)
        except InlayError as error:
            self.failed = True
            return error

    def show(self, lines: Sequence[str]) -> None:
        """Write lines below the title."""
        title = [f"{self.title}:"] if self.title else []
        self._terminal.write_lines([*title, *lines])

    def _answer(self) -> None:
        """Stream an answer to the conversation so far, then its figures."""
        timing = AnswerTiming()
        parts: list[str] = []
        try:
            self._runner.run(self._stream(timing, parts))
        except KeyboardInterrupt:
            self._terminal.write_answer(" [stopped]")
        except InlayError:
            if not parts:
                self.conversation.messages.pop()  # the question that cannot be answered
            self._terminal.end_answer()
            raise
        self.conversation.answered("".join(parts))
        self._terminal.end_answer()
        self._count(timing)
        self._terminal.write_lines(["", *timing.lines(), ""])

    async def _stream(self, timing: AnswerTiming, parts: list[str]) -> None:
        conversation = self.conversation
        pieces = self._backend.answer(conversation.prompt(), conversation.options.fields(), timing)
        async with aclosing(pieces) as stream:  # type: ignore[type-var]
            async for piece in stream:
                if piece.reasoning:
                    self._terminal.write_answer(piece.reasoning, dim=True)
                if piece.content:
                    parts.append(piece.content)
                    self._terminal.write_answer(piece.content)

    def _count(self, timing: AnswerTiming) -> None:
        self._answers += 1
        self._totals.prompt_tokens += timing.prompt_tokens
        self._totals.cached_tokens += timing.cached_tokens
        self._totals.output_tokens += timing.output_tokens
        self._prompt_s += timing.prompt_s
        self._output_s += timing.output_s

    def stats(self) -> tuple[str, ...]:
        """Lines about its answers."""
        totals = self._totals
        return (
            f"answers: {self._answers}; messages in the conversation: "
            f"{len(self.conversation.messages)}",
            f"prompt: {totals.prompt_tokens} tokens, {totals.cached_tokens} of them from the "
            f"cache, {format_seconds(self._prompt_s)}",
            f"output: {totals.output_tokens} tokens, {format_seconds(self._output_s)}",
        )

    def backend_stats(self) -> tuple[str, ...]:
        """Lines about what answers."""
        return tuple(self._runner.run(self._backend.stats()))


def converse(terminal: Terminal, sessions: Sequence[Session]) -> None:
    """Chat until the input ends or /exit; each session takes each message, in order.

    What all of them say to a command is written once.
    """
    while True:
        try:
            message = terminal.read_message()
        except KeyboardInterrupt:
            if not terminal.interactive:
                raise
            print("\n(Ctrl-D or /exit leaves)")
            continue
        if message is None:
            return
        if is_command(message):
            if _obey(terminal, sessions, message) is Then.LEAVE:
                return
        elif message:
            for session in sessions:
                session.ask(message)


def _obey(terminal: Terminal, sessions: Sequence[Session], command: str) -> Then:
    outcomes = [session.obey(command) for session in sessions]
    errors = [str(outcome) for outcome in outcomes if isinstance(outcome, InlayError)]
    for text in dict.fromkeys(errors):
        print(f"error: {text}", file=sys.stderr, flush=True)
    done = [
        (session, outcome)
        for session, outcome in zip(sessions, outcomes, strict=True)
        if isinstance(outcome, Outcome)
    ]
    _show(terminal, [(session, outcome.lines) for session, outcome in done])
    then = done[0][1].then if done else Then.GO_ON
    if then is Then.ANSWER:
        for session, _ in done:
            session.answer()
    elif then is Then.SHOW_STATS:
        _show(terminal, [(session, session.stats()) for session, _ in done])
        _show(terminal, [(session, session.backend_stats()) for session, _ in done])
    return then


def _show(terminal: Terminal, said: Sequence[tuple[Session, tuple[str, ...]]]) -> None:
    """Write what sessions say: below their titles, unless all say the same."""
    if len({lines for _, lines in said}) == 1:
        terminal.write_lines(said[0][1])
        return
    for session, lines in said:
        session.show(lines)
