"""Notations that write arguments as pairs of a key and a value, each in tags of its own.

GLM-4.5 to 4.7 and Hunyuan 3 write so.
"""

from typing import ClassVar, NamedTuple

from inlay.serve.parsers.base import ReaderOptions
from inlay.serve.parsers.tag_call import TagCallParser


class PairTags(NamedTuple):
    """A notation's tags."""

    call: str
    call_end: str
    key: str
    key_end: str
    value: str
    value_end: str


class ArgKeyParser(TagCallParser):
    """Reads `CALL name KEY key KEY_END VALUE value VALUE_END ... CALL_END`, spaced as it likes.

    The name ends with its line, or before the first key.
    """

    tags: ClassVar[PairTags]
    name_ends: ClassVar[tuple[str, ...]] = ()

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._state = "outside"
        self._held = self._key = ""

    def _marker(self, marker: str) -> None:
        tags = self.tags
        if self._state == "value":
            if marker == tags.value_end:
                self._state = "inside"
                self._add_argument(self._key, self._held)
            else:
                self._held += marker
        elif marker == tags.call:
            self._end()
            self._state, self._held = "name", ""
        elif self._state == "outside":
            if marker not in self.name_ends:
                self._say(marker)
        elif self._state == "name" and not self._name_ended(marker):
            return
        elif marker in (tags.key, tags.value):
            self._state, self._held = ("key" if marker == tags.key else "value"), ""
        elif marker == tags.key_end:
            self._state, self._key = "inside", self._held.strip()
        elif marker == tags.call_end:
            self._end()

    def _text(self, text: str) -> None:
        if self._state == "outside":
            self._say(text)
        elif self._state == "name":
            self._held += text
            line, end, rest = self._held.lstrip().partition("\n")
            if end and line.strip() and self._name_ended(end):
                self._text(rest)
        elif self._state in ("key", "value"):
            self._held += text

    def _name_ended(self, end: str) -> bool:
        """Announce the call; returns whether the name is one."""
        name = self._held.strip().partition("\n")[0]
        if name and not any(char.isspace() for char in name):
            self._state = "inside"
            self._begin_call(name)
            return True
        self._state = "outside"
        self._say(self.tags.call + self._held + end.strip())
        return False

    def _end(self) -> None:
        if self._state == "name" and self._held.strip():
            self._say(self.tags.call + self._held)
        self._end_call()
        self._state = "outside"


class GlmParser(ArgKeyParser):
    """GLM-4.5, 4.6 and 4.7."""

    tags = tool_markers = PairTags(
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
    )


class HunyuanParser(ArgKeyParser):
    """Hunyuan 3, whose tags all end in `:opensource`; one stands between name and arguments."""

    think_start = "<think:opensource>"
    think_end = "</think:opensource>"
    tags = PairTags(
        "<tool_call:opensource>",
        "</tool_call:opensource>",
        "<arg_key:opensource>",
        "</arg_key:opensource>",
        "<arg_value:opensource>",
        "</arg_value:opensource>",
    )
    name_ends = (
        "<tool_sep:opensource>",
        "<tool_calls:opensource>",
        "</tool_calls:opensource>",
    )
    tool_markers = (*tags, *name_ends)
