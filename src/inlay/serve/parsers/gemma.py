"""Gemma: `call:NAME{key:value}` between two tags, with a quote that is a token of its own."""

from typing import ClassVar

from inlay.serve.parsers.base import MarkerParser, ReaderOptions
from inlay.serve.parsers.loose_json import LooseJson


class GemmaParser(MarkerParser):
    """Gemma 4; its thinking is a channel named `thought`."""

    think_start = "<|channel>thought\n"
    think_end = "<channel|>"
    call_start: ClassVar[str] = "<|tool_call>"
    call_end: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    tool_markers = (call_start, call_end, quote)
    dropped_markers = ("<|tool_response>", "<turn|>")

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._head: str | None = None
        self._loose: LooseJson | None = None
        self._passed_on = False

    def _marker(self, marker: str) -> None:
        if marker == self.quote:
            if self._loose is not None:
                self._pass_on(self._loose.mark())
        elif marker == self.call_start:
            self._end()
            self._head = ""
        else:
            if self._loose is not None:
                self._pass_on(self._loose.complete())
            self._end(marker)

    def _text(self, text: str) -> None:
        if self._loose is not None:
            self._pass_on("".join(map(self._loose.push, text)))
        elif self._head is None:
            self._say(text)
        else:
            head, brace, rest = (self._head + text).partition("{")
            self._head = head
            if brace:
                self._passed_on = self._call(head.strip().removeprefix("call:").strip())
                self._loose = LooseJson()
                self._text(brace + rest)

    def _pass_on(self, arguments: str) -> None:
        if self._passed_on:
            self._arguments(arguments)

    def _end(self, closing: str = "") -> None:
        if self._head is not None and self._loose is None:
            self._say(self.call_start + self._head + closing)
        elif self._head is None and closing:
            self._say(closing)
        self._head = self._loose = None


class FunctionGemmaParser(GemmaParser):
    """FunctionGemma, the small model for calls: the same with other tags."""

    call_start = "<start_function_call>"
    call_end = "<end_function_call>"
    quote = "<escape>"
    tool_markers = (call_start, call_end, quote)
    dropped_markers = ("<start_function_response>", "<end_of_turn>")
