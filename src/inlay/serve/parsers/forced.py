"""Readers of output that a grammar forced to be tool calls: plain JSON, no notation."""

from inlay.serve.events import ToolCallDelta
from inlay.serve.parsers.base import OutputParser, Piece, new_call_id
from inlay.serve.parsers.json_call import JsonCall


class NamedCallParser(OutputParser):
    """The whole output is the arguments of one known function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._announced = False

    def push(self, text: str) -> list[Piece]:
        """Pass the text on as arguments."""
        pieces = []
        if not self._announced:
            self._announced = True
            pieces.append(Piece(tool_call=ToolCallDelta(0, new_call_id(), self._name)))
        if text:
            pieces.append(Piece(tool_call=ToolCallDelta(0, None, None, text)))
        return pieces

    def finish(self) -> list[Piece]:
        """Nothing is ever held back."""
        return []


class CallListParser(OutputParser):
    """The whole output is a list of `{"name": ..., "arguments": ...}`."""

    def __init__(self) -> None:
        self._json: JsonCall | None = None
        self._calls = 0
        self._announced = False

    def push(self, text: str) -> list[Piece]:
        """Take new text; returns what is decided now, in order."""
        pieces: list[Piece] = []
        arguments = ""
        for char in text:
            if self._json is None:
                if char == "{":
                    self._json, self._announced = JsonCall(), False
                    self._json.push(char)
                continue
            arguments += self._json.push(char)
            if self._json.name and not self._announced:
                self._announced = True
                pieces.append(
                    Piece(tool_call=ToolCallDelta(self._calls, new_call_id(), self._json.name))
                )
                self._calls += 1
            if self._json.complete:
                self._add(pieces, arguments + self._json.finish())
                arguments, self._json = "", None
        self._add(pieces, arguments)
        return pieces

    def finish(self) -> list[Piece]:
        """Nothing is ever held back."""
        return []

    def _add(self, pieces: list[Piece], arguments: str) -> None:
        if arguments:
            delta = ToolCallDelta(self._calls - 1, None, None, arguments)
            pieces.append(Piece(tool_call=delta))
