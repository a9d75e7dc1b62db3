"""What all readers of model output share: pieces, marker handling, thinking, call numbering."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from inlay.serve.events import ToolCallDelta
from inlay.serve.parsers.scanner import MarkerScanner


class Piece(msgspec.Struct, frozen=True):
    """A part of the output: thinking, answer and tool call, in this order where several are set.

    Parsers give pieces of one kind each; `joined` puts them together.
    """

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join pieces as far as their order can still be told; a call's name stays by itself."""
    made: list[Piece] = []
    for new in pieces:
        last = made[-1] if made else Piece()
        old_call, new_call = last.tool_call, new.tool_call
        if new.reasoning and (last.content or old_call):
            made.append(new)
        elif new.content and old_call:
            made.append(new)
        elif old_call is None or new_call is None:
            made[-1:] = [
                Piece(
                    content=last.content + new.content,
                    reasoning=last.reasoning + new.reasoning,
                    tool_call=new_call,
                )
            ]
        elif old_call.name is None and new_call.name is None and old_call.call == new_call.call:
            arguments = old_call.arguments + new_call.arguments
            call = ToolCallDelta(new_call.call, None, None, arguments)
            made[-1] = Piece(content=last.content, reasoning=last.reasoning, tool_call=call)
        else:
            made.append(new)
    return made


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader needs to know about the request.

    Attributes:
        thinking: the prompt ends inside the model's thinking.
        tools: tool calls are looked for.
        parallel: more than one call is passed on; otherwise the first only.
        tool_names: the functions the request offers.
        parameter_types: JSON types of their parameters, by function and parameter.
    """

    thinking: bool = False
    tools: bool = False
    parallel: bool = True
    tool_names: frozenset[str] = frozenset()
    parameter_types: dict[str, dict[str, object]] = {}


class OutputParser(ABC):
    """Turns the streamed text of one choice into pieces.

    `push` is called with each new text, `finish` once at the end. The concatenated result does
    not depend on how the text was cut.
    """

    @abstractmethod
    def push(self, text: str) -> list[Piece]:
        """Take new text; returns what is decided now, in order."""

    @abstractmethod
    def finish(self) -> list[Piece]:
        """The text has ended; returns what was held back."""


class PlainParser(OutputParser):
    """Everything is content."""

    def push(self, text: str) -> list[Piece]:
        """Pass the text on."""
        return [Piece(content=text)] if text else []

    def finish(self) -> list[Piece]:
        """Nothing is ever held back."""
        return []


class MarkerParser(OutputParser):
    """Base of readers whose notation is built of marker texts.

    It keeps the thinking section (`<think>` .. `</think>`), the tags around an answer and the
    space around sections; a subclass adds its markers and what they mean by `_marker` and `_text`.
    """

    think_start: ClassVar[str] = "<think>"
    think_end: ClassVar[str] = "</think>"
    tool_markers: ClassVar[tuple[str, ...]] = ()
    dropped_markers: ClassVar[tuple[str, ...]] = ()
    answer: ClassVar[tuple[str, ...]] = ()
    """The tags that some models put around an answer; anywhere else they are text."""

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        tool_markers = self.tool_markers if options.tools else ()
        self._scanner = MarkerScanner(
            (self.think_start, self.think_end, *self.answer, *tool_markers, *self.dropped_markers)
        )
        self._pieces: list[Piece] = []
        self._reasoning = _Trimmed(strip_start=True)
        self._content = _Trimmed(strip_start=options.thinking)
        self._thinking = options.thinking
        self._answering = False
        self._calls = 0

    def push(self, text: str) -> list[Piece]:
        """Take new text; returns what is decided now, in order."""
        for is_marker, part in self._scanner.push(text):
            if is_marker:
                self._take_marker(part)
            else:
                self._take_text(part)
        return self._take_pieces()

    def finish(self) -> list[Piece]:
        """The text has ended; returns what was held back."""
        held = self._scanner.flush()
        if held:
            self._take_text(held)
        self._end()
        if self._calls == 0:
            self._add_content(self._content.rest())
        return self._take_pieces()

    def _take_marker(self, marker: str) -> None:
        if marker in self.answer:
            self._take_answer_tag(marker)
        elif self._thinking:
            if marker == self.think_end:
                self._thinking = False
                self._content.start_over()
            elif marker not in self.dropped_markers and marker != self.think_start:
                # Some models call a tool without closing their thought.
                self._thinking = False
                self._content.start_over()
                self._marker(marker)
        elif marker == self.think_start and self._may_think():
            self._thinking = True
            self._content.start_over()
        elif marker in self.dropped_markers:
            pass
        elif marker in (self.think_start, self.think_end):
            self._text(marker)
        else:
            self._marker(marker)

    def _take_answer_tag(self, tag: str) -> None:
        opens = tag == self.answer[0]
        if self._thinking or opens == self._answering or (opens and not self._may_think()):
            self._take_text(tag)
        else:
            self._answering = opens
            self._content.start_over()

    def _may_think(self) -> bool:
        """A thought opens only before anything else was said."""
        return self._calls == 0 and not self._content.begun

    def _take_text(self, text: str) -> None:
        if self._thinking:
            self._add_reasoning(self._reasoning.push(text))
        else:
            self._text(text)

    def _take_pieces(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _text(self, text: str) -> None:
        """Text outside of thinking."""
        self._say(text)

    @abstractmethod
    def _marker(self, marker: str) -> None:
        """One of `tool_markers`, outside of thinking."""

    def _end(self) -> None:
        """The output ends: settle an open call."""
        return

    def _say(self, text: str) -> None:
        if self._options.tools:
            self._add_content(self._content.push(text))
        else:
            self._add_content(self._content.push(text) + self._content.rest())

    def _add_content(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(content=text))

    def _add_reasoning(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(reasoning=text))

    def _call(self, name: str, call_id: str | None = None) -> bool:
        """Announce a call; returns whether it is passed on."""
        if not name or (self._calls and not self._options.parallel):
            return False
        call_id = call_id or new_call_id()
        self._pieces.append(Piece(tool_call=ToolCallDelta(self._calls, call_id, name)))
        self._calls += 1
        self._content.start_over()
        return True

    def _arguments(self, text: str) -> None:
        if text:
            self._pieces.append(Piece(tool_call=ToolCallDelta(self._calls - 1, None, None, text)))


class _Trimmed:
    """Streams text without the space at its end (until more text follows) and, if told, start.

    `begun` says whether anything but space was said in all.
    """

    def __init__(self, *, strip_start: bool) -> None:
        self.begun = False
        self._strip_start = strip_start
        self._space = ""

    def push(self, text: str) -> str:
        text = self._space + text
        if self._strip_start:
            text = text.lstrip()
        solid = text.rstrip()
        self._space = text[len(solid) :]
        if solid:
            self.begun = True
            self._strip_start = False
        return solid

    def rest(self) -> str:
        """The space held back, after all."""
        space, self._space = self._space, ""
        return "" if self._strip_start else space

    def start_over(self) -> None:
        """A section ended: the space around it is dropped."""
        self._space = ""
        self._strip_start = True


def new_call_id() -> str:
    """A fresh id for a tool call, in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"
