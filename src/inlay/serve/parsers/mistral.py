"""Mistral: `[TOOL_CALLS]` before a list of JSON objects, or before each call's name."""

from inlay.serve.parsers.base import ReaderOptions
from inlay.serve.parsers.json_call import JsonSpan
from inlay.serve.parsers.tagged_json import TaggedJsonParser

_CALL_ID = "[CALL_ID]"
_ARGUMENTS = "[ARGS]"


class MistralParser(TaggedJsonParser):
    """Reads `[TOOL_CALLS][{...}, ...]` and `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`.

    The id and the marker before the arguments may be missing. Thinking is `[THINK]..[/THINK]`.
    """

    think_start = "[THINK]"
    think_end = "[/THINK]"
    opening = ("[TOOL_CALLS]",)
    tool_markers = (*opening, _CALL_ID, _ARGUMENTS)

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._part = ""
        self._words = {"name": "", _CALL_ID: "", _ARGUMENTS: ""}
        self._span: JsonSpan | None = None

    def _inside_text(self) -> bool:
        return super()._inside_text() or (self._span is not None and self._span.inside_text)

    def _marker(self, marker: str) -> None:
        if self._part and self._span is None and marker in (_CALL_ID, _ARGUMENTS):
            self._part = marker
            self._raw += marker
        else:
            super()._marker(marker)

    def _take(self, char: str) -> None:
        if self._span is not None:
            self._take_argument(self._span, char)
        elif self._part and char == "{":
            self._announce(self._words["name"].strip(), self._words[_CALL_ID].strip() or None)
            self._span = JsonSpan()
            self._take_argument(self._span, char)
        elif self._part:
            self._words[self._part] += char
        elif self._json is None and not self._listed and char not in " \t\r\n[{":
            self._part = "name"
            self._words = {"name": char, _CALL_ID: "", _ARGUMENTS: ""}
        else:
            super()._take(char)

    def _take_argument(self, span: JsonSpan, char: str) -> None:
        span.take(char)
        if self._passed_on:
            self._arguments(char)
        if span.ended:
            self._end()

    def _end(self, closing: str = "") -> None:
        self._part, self._span = "", None
        super()._end(closing)
