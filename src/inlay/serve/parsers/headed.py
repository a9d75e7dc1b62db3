"""Notations in which a call is a header, a separator and JSON arguments, all in marker tokens.

DeepSeek-V3/R1, DeepSeek-V3.1 and Kimi-K2 write their calls so.
"""

from abc import abstractmethod
from typing import ClassVar

from inlay.serve.parsers.base import MarkerParser, ReaderOptions
from inlay.serve.parsers.json_call import JsonSpan


class HeadedParser(MarkerParser):
    """Reads `CALL header SEPARATOR arguments END`; text between calls of a section is dropped."""

    section_start: ClassVar[str]
    section_end: ClassVar[str]
    call_start: ClassVar[str]
    separator: ClassVar[str]
    call_end: ClassVar[str]

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._state = "outside"
        self._header = ""
        self._span: JsonSpan | None = None
        self._passed_on = False

    def _marker(self, marker: str) -> None:
        if marker == self.section_start:
            self._state = "section"
        elif marker == self.section_end:
            self._end()
            self._state = "outside"
            self._content.start_over()
        elif marker == self.call_start:
            self._end()
            self._state, self._header, self._span = "header", "", None
            self._passed_on = False
        elif marker == self.separator and self._state == "header":
            self._state = "arguments"
            self._header_ended()
        elif marker == self.call_end:
            self._end()
            self._state = "section"

    def _text(self, text: str) -> None:
        if self._state == "outside":
            self._say(text)
        elif self._state == "header":
            self._header += text
        elif self._state == "arguments":
            self._take_arguments(text)

    @abstractmethod
    def _header_ended(self) -> None:
        """The separator came: announce the call that `_header` names, if it names one."""

    def _take_arguments(self, text: str) -> None:
        if self._span is None:
            text = text.lstrip()
            if not text:
                return
            self._span = JsonSpan()
        text = self._span.push(text)
        if self._passed_on:
            self._arguments(text)

    def _end(self) -> None:
        if self._state == "arguments" and self._span is None and self._passed_on:
            self._arguments("{}")
        self._state = "section" if self._state in ("header", "arguments") else self._state


class DeepSeekParser(HeadedParser):
    """DeepSeek-V3, R1 and V3.1.

    V3 and R1 write `function<sep>name`, a line break and the arguments in a fenced block; V3.1
    writes `name<sep>arguments`.
    """

    section_start = "<｜tool▁calls▁begin｜>"
    section_end = "<｜tool▁calls▁end｜>"
    call_start = "<｜tool▁call▁begin｜>"
    separator = "<｜tool▁sep｜>"
    call_end = "<｜tool▁call▁end｜>"
    tool_markers = (section_start, section_end, call_start, separator, call_end)
    dropped_markers = ("<｜end▁of▁sentence｜>",)
    _fence = "```json"

    def _header_ended(self) -> None:
        self._named = self._header.strip() != "function"
        self._preface = ""
        if self._named:
            self._passed_on = self._call(self._header.strip())

    def _take_arguments(self, text: str) -> None:
        if self._named:
            super()._take_arguments(text)
            return
        self._preface += text
        before, fence, after = self._preface.partition(self._fence)
        if fence:
            self._named = True
            self._passed_on = self._call(before.strip())
            super()._take_arguments(after)


class KimiParser(HeadedParser):
    """Kimi-K2: the header is the call's id, `functions.NAME:POSITION`."""

    section_start = "<|tool_calls_section_begin|>"
    section_end = "<|tool_calls_section_end|>"
    call_start = "<|tool_call_begin|>"
    separator = "<|tool_call_argument_begin|>"
    call_end = "<|tool_call_end|>"
    tool_markers = (section_start, section_end, call_start, separator, call_end)
    dropped_markers = ("<|im_end|>", "[EOS]")

    def _header_ended(self) -> None:
        call_id = self._header.strip()
        name = call_id.removeprefix("functions.").rsplit(":", 1)[0]
        self._passed_on = self._call(name, call_id)
