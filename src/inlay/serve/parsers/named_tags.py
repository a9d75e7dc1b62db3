"""Notations in which tags name the function and each parameter, with the values between them.

Qwen3-Coder, MiniMax-M2 and DeepSeek-V3.2 write so.
"""

import re
from typing import ClassVar, NamedTuple

from inlay.serve.parsers.base import ReaderOptions
from inlay.serve.parsers.tag_call import TagCallParser

_HEADER = re.compile(
    r"""\s*(?:"([^"]*)"|'([^']*)'|(.*?))\s*((?:\w+="\w*"\s*)*)(/?)\s*""", re.DOTALL
)


class NamedTags(NamedTuple):
    """A notation's tags; those that name something end before the name."""

    section: str
    section_end: str
    function: str
    function_end: str
    parameter: str
    parameter_end: str


class NamedTagParser(TagCallParser):
    """Reads `FUNCTION name> PARAMETER name>value PARAMETER_END FUNCTION_END`.

    The section around the functions may be missing.
    """

    tags: ClassVar[NamedTags]
    line_breaks: ClassVar[bool] = False
    """Whether values stand between line breaks that are not theirs."""

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._state = "outside"
        self._parameter = self._held = self._body = ""
        self._is_text: bool | None = None

    def _marker(self, marker: str) -> None:
        tags = self.tags
        if self._state == "value":
            if marker == tags.parameter_end:
                self._value_ended()
            else:
                self._held += marker
        elif marker == tags.function:
            self._end()
            self._state, self._held = "function", ""
        elif marker == tags.parameter and self._state == "inside":
            self._state, self._held = "parameter", ""
        elif marker in (tags.function_end, tags.section_end):
            self._end()

    def _text(self, text: str) -> None:
        if self._state == "outside":
            self._say(text)
        elif self._state in ("function", "parameter"):
            header, end, rest = (self._held + text).partition(">")
            self._held = header
            if end:
                self._header_ended(header)
                self._text(rest)
        elif self._state == "value":
            self._held += text
        else:
            self._body += text

    def _header_ended(self, header: str) -> None:
        match = _HEADER.fullmatch(header)
        name = (match[1] or match[2] or match[3] or "") if match else header
        attributes = match[4] if match else ""
        if self._state == "parameter":
            self._state, self._parameter, self._held = "value", name, ""
            self._is_text = None
            if 'string="' in attributes:
                self._is_text = 'string="true"' in attributes
            return
        self._state, self._body = "inside", ""
        self._begin_call(name)
        if match and match[5]:
            self._end()

    def _value_ended(self) -> None:
        self._state = "inside"
        text = self._held
        if self.line_breaks:
            text = text.removeprefix("\n").removesuffix("\n")
        self._add_argument(self._parameter, text, is_text=self._is_text)

    def _end(self) -> None:
        if self._state == "value":
            self._value_ended()
        self._end_call(self._body)
        self._state = "outside"


class QwenCoderParser(NamedTagParser):
    """Qwen3-Coder, Qwen3.5 and Nemotron 3: `<function=NAME><parameter=NAME>` and lines of value."""

    tags = tool_markers = NamedTags(
        "<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>"
    )
    line_breaks = True


class MiniMaxParser(NamedTagParser):
    """MiniMax-M2: `<invoke name="NAME"><parameter name="NAME">value</parameter></invoke>`."""

    tags = tool_markers = NamedTags(
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<invoke name=",
        "</invoke>",
        "<parameter name=",
        "</parameter>",
    )


class DsmlParser(NamedTagParser):
    """DeepSeek-V3.2: the same in the model's own tags, which say what is text (`string="true"`).

    DeepSeek-V4 names the section otherwise.
    """

    tags = NamedTags(
        "<｜DSML｜function_calls>",
        "</｜DSML｜function_calls>",
        "<｜DSML｜invoke name=",
        "</｜DSML｜invoke>",
        "<｜DSML｜parameter name=",
        "</｜DSML｜parameter>",
    )
    tool_markers = (*tags, "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
    dropped_markers = ("<｜end▁of▁sentence｜>",)
