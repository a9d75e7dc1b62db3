"""Reads streamed JSON: where a value ends, and the name and arguments of a tool call's object."""

import msgspec

_ARGUMENTS = ("arguments", "parameters")
_SPACE = " \t\r\n"


class JsonSpan:
    """Follows one JSON object or list, character by character, to its end.

    Attributes:
        inside_text: the next character belongs to a quoted text.
        ended: the value is complete.
    """

    def __init__(self) -> None:
        self.inside_text = False
        self.ended = False
        self._escaped = False
        self._depth = 0

    def take(self, char: str) -> None:
        """Follow one character of the value."""
        if self.inside_text:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self.inside_text = False
                self.ended = self._depth == 0
        elif char == '"':
            self.inside_text = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            self.ended = self._depth <= 0

    def push(self, text: str) -> str:
        """Follow a piece of text; returns the part of it that belongs to the value."""
        for position, char in enumerate(text):
            if self.ended:
                return text[:position]
            self.take(char)
        return text


class JsonCall:
    r"""Takes an object `{"name": ..., "arguments": {...}}` piece by piece, keys in any order.

    The arguments are passed on exactly as written. If they come before the name, they wait for
    it. Arguments written as a JSON text (`"{\"a\": 1}"`) are unwrapped. Other keys are skipped.

    Attributes:
        name: the function's name, once known.
        complete: the object has ended.
        broken: this is no such object; what follows is ignored.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.complete = False
        self.broken = False
        self._state = "start"
        self._key = ""
        self._span = JsonSpan()
        self._bare = False
        self._streamed = False
        self._value: list[str] = []
        self._has_arguments = False
        self._pending: list[str] = []

    @property
    def inside_text(self) -> bool:
        """Whether the next character belongs to a quoted text."""
        return self._state in ("key", "value") and self._span.inside_text

    def push(self, text: str) -> str:
        """Take the next piece; returns new text of the arguments (only once the name is known)."""
        for char in text:
            if self.broken or self.complete:
                break
            self._take(char)
        return self._release()

    def finish(self) -> str:
        """What is still due when the object has ended: `{}` for a call without arguments."""
        if self.complete and not self._has_arguments:
            self._has_arguments = True
            self._pending.append("{}")
        return self._release()

    def _release(self) -> str:
        if self.name is None or not self._pending:
            return ""
        text = "".join(self._pending)
        self._pending.clear()
        return text

    def _take(self, char: str) -> None:
        state = self._state
        if state == "value":
            self._take_value(char)
        elif state == "key":
            self._value.append(char)
            self._span.take(char)
            if self._span.ended:
                self._key = _decoded("".join(self._value)) or ""
                self._state = "colon"
        elif char in _SPACE:
            return
        elif state == "start":
            self._expect(char, "{", "first_key")
        elif state in ("first_key", "next_key"):
            if char == '"':
                self._start(char)
                self._state = "key"
            elif char == "}" and state == "first_key":
                self.complete = True
            else:
                self.broken = True
        elif state == "colon":
            self._expect(char, ":", "before_value")
        elif state == "before_value":
            self._start_value(char)
        elif char == "}":
            self.complete = True
        else:
            self._expect(char, ",", "next_key")

    def _expect(self, char: str, wanted: str, then: str) -> None:
        if char == wanted:
            self._state = then
        else:
            self.broken = True

    def _start(self, char: str) -> None:
        self._span = JsonSpan()
        self._span.take(char)
        self._value = [char]

    def _start_value(self, char: str) -> None:
        self._start(char)
        self._state = "value"
        self._bare = char not in '{["'
        self._streamed = self._is_arguments() and char in "{["
        if self._streamed:
            self._pending.append(char)

    def _is_arguments(self) -> bool:
        return self._key in _ARGUMENTS and not self._has_arguments

    def _take_value(self, char: str) -> None:
        if self._bare:
            # A number, true, false or null ends where something else begins.
            if char in ",}" or char in _SPACE:
                self._end_value()
                if char not in _SPACE:
                    self._take(char)
            else:
                self._value.append(char)
            return
        (self._pending if self._streamed else self._value).append(char)
        self._span.take(char)
        if self._span.ended:
            self._end_value()

    def _end_value(self) -> None:
        text = "".join(self._value)
        if self._key == "name" and not self._streamed:
            self.name = _decoded(text)
            self.broken |= not self.name
        elif self._is_arguments():
            self._has_arguments = True
            if not self._streamed:
                self._pending.append("{}" if text == "null" else _decoded(text) or text)
        self._state = "after_value"


def _decoded(text: str) -> str | None:
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
