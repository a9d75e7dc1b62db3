"""Llama 3: a call is the whole output, `{"name": ..., "parameters": {...}}`."""

from inlay.serve.events import ToolCallDelta
from inlay.serve.parsers.base import OutputParser, Piece, ReaderOptions, joined, new_call_id
from inlay.serve.parsers.json_call import JsonCall

_TAG = "<|python_tag|>"


class LlamaParser(OutputParser):
    """Reads an output that begins with `{` and names an offered function as calls.

    Several calls may follow each other, separated by `;` or space. Anything else is content.
    """

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        self._state = "start"
        self._raw = ""
        self._json = JsonCall()
        self._calls = 0
        self._passed_on = False

    def push(self, text: str) -> list[Piece]:
        """Take new text; returns what is decided now, in order."""
        pieces: list[Piece] = []
        for char in text:
            if self._state == "content":
                self._raw += char
            elif self._state == "start":
                self._begin(char)
            else:
                self._in_call(char, pieces)
        if self._state == "content" and self._raw:
            pieces.append(Piece(content=self._raw))
            self._raw = ""
        return joined(pieces)

    def finish(self) -> list[Piece]:
        """The text has ended; returns what was held back."""
        raw = self._raw
        self._raw, self._state = "", "content"
        return [Piece(content=raw)] if raw.strip() or (raw and not self._calls) else []

    def _begin(self, char: str) -> None:
        self._raw += char
        head = self._raw.lstrip(" \t\r\n;" if self._calls else None)
        if head.startswith(("{", _TAG + "{")):
            self._state, self._json, self._passed_on = "call", JsonCall(), False
            self._json.push("{")
        elif not _TAG.startswith(head.strip()[: len(_TAG)]):
            self._state = "content"

    def _in_call(self, char: str, pieces: list[Piece]) -> None:
        call = self._json
        known = call.name is not None
        if not known:
            self._raw += char
        arguments = call.push(char)
        if not known and call.name is not None:
            if call.name not in self._options.tool_names:
                self._state = "content"
                return
            self._raw = ""
            self._passed_on = self._options.parallel or self._calls == 0
            if self._passed_on:
                delta = ToolCallDelta(self._calls, new_call_id(), call.name)
                pieces.append(Piece(tool_call=delta))
                self._calls += 1
        if call.complete:
            arguments += call.finish()
        if arguments and self._passed_on:
            pieces.append(Piece(tool_call=ToolCallDelta(self._calls - 1, None, None, arguments)))
        if call.complete or call.broken:
            self._state = "start" if call.name is not None else "content"
