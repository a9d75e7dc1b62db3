"""Notations in which calls are JSON objects, or lists of them, between two tags.

Hermes and Qwen, Granite 3, Nemotron Nano and Hunyuan-A13B write so.
"""

from typing import ClassVar

from inlay.serve.parsers.base import MarkerParser, ReaderOptions
from inlay.serve.parsers.json_call import JsonCall


class TaggedJsonParser(MarkerParser):
    """Reads `OPENING {"name": ..., "arguments": {...}} CLOSING`; what is no call stays content.

    A section may hold several objects, with or without a list's brackets around them. Without a
    closing tag it ends with the list.
    """

    opening: ClassVar[tuple[str, ...]]
    closing: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._open = self._raw = ""
        self._json: JsonCall | None = None
        self._announced = self._named = self._passed_on = False
        self._listed = self._strange = False

    def _inside_text(self) -> bool:
        """Whether a marker here belongs to a quoted text of the arguments."""
        return self._json is not None and self._json.inside_text

    def _marker(self, marker: str) -> None:
        if self._open and self._inside_text():
            self._text(marker)
        elif marker in self.opening:
            self._end()
            self._open, self._raw = marker, ""
            self._announced = self._listed = self._strange = False
        elif self._open:
            self._end(marker)
        else:
            self._say(marker)

    def _text(self, text: str) -> None:
        for position, char in enumerate(text):
            if not self._open:
                self._say(text[position:])
                return
            if not self._announced:
                self._raw += char
            self._take(char)

    def _take(self, char: str) -> None:
        """Take one character of an open section."""
        if self._json is not None:
            self._take_json(self._json, char)
        elif self._strange or char in " \t\r\n,;":
            return
        elif char == "{":
            self._json, self._named = JsonCall(), False
            self._json.push(char)
        elif char == "[":
            self._listed = True
        elif char == "]" and self._listed:
            if not self.closing:
                self._end()
        else:
            self._strange = True

    def _take_json(self, call: JsonCall, char: str) -> None:
        arguments = call.push(char)
        if call.name and not self._named:
            self._named = True
            self._announce(call.name)
        if call.complete:
            arguments += call.finish()
        if self._named and self._passed_on:
            self._arguments(arguments)
        if call.complete or call.broken:
            self._json = None
            self._strange |= call.broken

    def _announce(self, name: str, call_id: str | None = None) -> None:
        self._announced = True
        self._passed_on = self._call(name, call_id)

    def _end(self, closing: str = "") -> None:
        """The section is over, by its closing tag or with the output."""
        opening, self._open, self._json = self._open, "", None
        if opening and not self._announced:
            self._say(opening + self._raw + closing)


class HermesParser(TaggedJsonParser):
    """Hermes and Qwen; also Granite 3.1 and 4, whose tags are the same."""

    opening = ("<tool_call>",)
    closing = ("</tool_call>",)
    tool_markers = (*opening, *closing)


class GraniteParser(TaggedJsonParser):
    """Granite 3: `<|tool_call|>[{...}, {...}]`, and `<response>` around an answer to a thought."""

    opening = tool_markers = ("<|tool_call|>",)
    answer = ("<response>", "</response>")


class NemotronParser(TaggedJsonParser):
    """Nemotron Nano 2: `<TOOLCALL>[{...}, {...}]</TOOLCALL>`."""

    opening = ("<TOOLCALL>",)
    closing = ("</TOOLCALL>",)
    tool_markers = (*opening, *closing)


class HunyuanListParser(TaggedJsonParser):
    """Hunyuan-A13B: `<tool_calls>[{...}, {...}]</tool_calls>`, and `<answer>` around answers.

    MiniMax-M1 and Apriel use the same tags.
    """

    opening = ("<tool_calls>",)
    closing = ("</tool_calls>",)
    tool_markers = (*opening, *closing)
    answer = ("<answer>", "</answer>")
