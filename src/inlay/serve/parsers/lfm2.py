"""LFM2: a list of Python calls between two tags, `[name(key="value", other=3)]`."""

from inlay.serve.parsers.base import ReaderOptions
from inlay.serve.parsers.loose_json import LooseJson
from inlay.serve.parsers.tagged_json import TaggedJsonParser


class Lfm2Parser(TaggedJsonParser):
    """Reads Python calls, and JSON objects in their place, which the model writes when asked to."""

    opening = ("<|tool_call_start|>",)
    closing = ("<|tool_call_end|>",)
    tool_markers = (*opening, *closing)

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._name = ""
        self._loose: LooseJson | None = None

    def _take(self, char: str) -> None:
        if self._loose is not None:
            self._pass_on(self._loose, self._loose.push(char))
        elif self._name and char == "(":
            self._announce(self._name.strip())
            self._name, self._loose = "", LooseJson("'\"")
            self._pass_on(self._loose, self._loose.push(char))
        elif self._json is None and (self._name or char not in " \t\r\n,;[]{"):
            self._name += char
        else:
            super()._take(char)

    def _pass_on(self, arguments: LooseJson, text: str) -> None:
        if self._passed_on:
            self._arguments(text)
        if arguments.ended:
            self._loose = None

    def _end(self, closing: str = "") -> None:
        if self._loose is not None and closing:
            self._pass_on(self._loose, self._loose.complete())
        self._name, self._loose = "", None
        super()._end(closing)
