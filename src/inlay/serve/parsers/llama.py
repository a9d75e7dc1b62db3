"""Llama 3: a call is the whole output, `{"name": ..., "parameters": {...}}`."""

import re

from inlay.serve.events import ToolCallDelta
from inlay.serve.parsers.base import OutputParser, Piece, ReaderOptions, joined, new_call_id
from inlay.serve.parsers.json_call import JsonCall
from inlay.serve.parsers.loose_json import LooseJson

_TAG = "<|python_tag|>"
_PYTHON_CALL = re.compile(re.escape(_TAG) + r"\s*([A-Za-z_][\w.-]*)?(\(?)")
_METHOD = ".call"
"""What Llama 3.1 puts behind the names of the tools that it was trained with."""


class LlamaParser(OutputParser):
    """Reads an output that begins with `{` and names an offered function as calls.

    Several calls may follow each other, separated by `;` or space. After its tag the model may
    write a Python call instead, `brave_search.call(query="...")`. Anything else is content.
    """

    def __init__(self, options: ReaderOptions) -> None:
        self._options = options
        self._state = "start"
        self._raw = ""
        self._json = JsonCall()
        self._loose = LooseJson()
        self._calls = 0
        self._passed_on = False

    def push(self, text: str) -> list[Piece]:
        """Take new text; returns what is decided now, in order."""
        pieces: list[Piece] = []
        for char in text:
            if self._state == "content":
                self._raw += char
            elif self._state == "start":
                self._begin(char, pieces)
            elif self._state == "python":
                self._in_python(char, pieces)
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

    def _begin(self, char: str, pieces: list[Piece]) -> None:
        self._raw += char
        head = self._raw.lstrip(" \t\r\n;" if self._calls else None)
        python = _PYTHON_CALL.fullmatch(head)
        if head.startswith(("{", _TAG + "{")):
            self._state, self._json, self._passed_on = "call", JsonCall(), False
            self._json.push("{")
        elif python and python[2]:
            self._state, self._loose = "python", LooseJson("'\"")
            if self._announce((python[1] or "").removesuffix(_METHOD), pieces):
                self._in_python("(", pieces)
        elif not python and not _TAG.startswith(head.strip()[: len(_TAG)]):
            self._state = "content"

    def _announce(self, name: str, pieces: list[Piece]) -> bool:
        """Begin a call if the function is an offered one; else all is content."""
        if name not in self._options.tool_names:
            self._state = "content"
            return False
        self._raw = ""
        self._passed_on = self._options.parallel or self._calls == 0
        if self._passed_on:
            pieces.append(Piece(tool_call=ToolCallDelta(self._calls, new_call_id(), name)))
            self._calls += 1
        return True

    def _add(self, arguments: str, pieces: list[Piece]) -> None:
        if arguments and self._passed_on:
            pieces.append(Piece(tool_call=ToolCallDelta(self._calls - 1, None, None, arguments)))

    def _in_python(self, char: str, pieces: list[Piece]) -> None:
        self._add(self._loose.push(char), pieces)
        if self._loose.ended:
            self._state = "start"

    def _in_call(self, char: str, pieces: list[Piece]) -> None:
        call = self._json
        known = call.name is not None
        if not known:
            self._raw += char
        arguments = call.push(char)
        if not known and call.name is not None and not self._announce(call.name, pieces):
            return
        if call.complete:
            arguments += call.finish()
        self._add(arguments, pieces)
        if call.complete or call.broken:
            self._state = "start" if call.name is not None else "content"
