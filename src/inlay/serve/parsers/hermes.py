"""Qwen and Hermes: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, `<think>`."""

from inlay.serve.parsers.base import MarkerParser, ReaderOptions
from inlay.serve.parsers.json_call import JsonCall

_OPEN = "<tool_call>"
_CLOSE = "</tool_call>"


class HermesParser(MarkerParser):
    """Reads calls written as JSON objects between tags; what is no call stays content."""

    tool_markers = (_OPEN, _CLOSE)

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._json: JsonCall | None = None
        self._raw = ""
        self._announced = self._passed_on = False

    def _marker(self, marker: str) -> None:
        if self._json is not None and self._json.inside_text:
            self._text(marker)
        elif marker == _OPEN:
            self._end()
            self._json, self._raw = JsonCall(), ""
            self._announced = self._passed_on = False
        elif self._json is None:
            self._say(marker)
        else:
            self._end(_CLOSE)

    def _text(self, text: str) -> None:
        if self._json is None:
            self._say(text)
            return
        if not self._announced:
            self._raw += text
        self._pass_on(self._json.push(text))

    def _pass_on(self, arguments: str) -> None:
        if self._json is not None and self._json.name and not self._announced:
            self._announced = True
            self._passed_on = self._call(self._json.name)
        if self._passed_on:
            self._arguments(arguments)

    def _end(self, closing: str = "") -> None:
        if self._json is None:
            return
        self._pass_on(self._json.finish())
        self._json = None
        if not self._announced:
            self._say(_OPEN + self._raw + closing)
