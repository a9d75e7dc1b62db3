"""Rewrites arguments that are almost JSON as JSON, character by character.

Python calls (`f(city='Paris', days=3)`) and Gemma's objects (`{city:<|"|>Paris<|"|>}`) are such:
bare keys, `=` for `:`, other quotes, Python's names of constants.
"""

import msgspec

_SPACE = " \t\r\n"
_OPEN = {"{": "}", "(": "}", "[": "]"}
_CLOSE = ")}]"
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {
    "n": "\\n",
    "t": "\\t",
    "r": "\\r",
    "b": "\\b",
    "f": "\\f",
    "\\": "\\\\",
    '"': '\\"',
    "'": "'",
    "/": "/",
    "\n": "",
}
_HEX_DIGITS = {"u": 4, "x": 2}


class LooseJson:
    """Takes one object from its opening bracket to its closing one; a call's are `(` and `)`.

    A quote character inside a text ends it only where the text can end, before a comma, a colon
    or a closing bracket: models forget to escape.

    Args:
        quotes: characters that quote a text. Where a token of its own does, see `mark`.

    Attributes:
        ended: the object is complete.
    """

    def __init__(self, quotes: str = "") -> None:
        self.ended = False
        self._quotes = quotes
        self._state = "start"
        self._closers: list[str] = []
        self._filled: list[bool] = []
        self._word = ""
        self._quote = ""
        self._held = ""
        self._escape = ""

    def push(self, char: str) -> str:
        """Take the next character; returns new JSON text."""
        if self.ended:
            return ""
        if self._state == "text":
            return self._in_text(char)
        if self._state == "text_end":
            return self._at_text_end(char)
        if self._state == "quoted_key":
            return self._in_quoted_key(char)
        if self._state == "start":
            return self._open(char) if char in "{(" else ""
        if self._state == "key":
            return self._in_key(char)
        if self._state == "value":
            return self._at_value(char)
        if self._state == "bare" and char not in "," + _CLOSE:
            self._word += char
            return ""
        return self._after_value(char)

    def mark(self) -> str:
        """Take a quote that is a token of its own; returns new JSON text."""
        if self._state == "text":
            self._state = "after"
            return '"'
        if self._state == "value":
            self._state = "text"
            return self._lead_in_list() + '"'
        if self._state in ("key", "quoted_key"):
            self._state = "quoted_key" if self._state == "key" else "key"
        return ""

    def complete(self) -> str:
        """The notation says that the object is over; returns what closes it as JSON."""
        if self.ended or not self._closers:
            return ""
        made = ""
        if self._state in ("text", "text_end"):
            made = '"'
        elif self._state == "bare":
            made = self._bare()
        elif self._state == "value" and self._closers[-1] == "}":
            made = "null"
        self.ended = True
        return made + "".join(reversed(self._closers))

    def _open(self, char: str, closer: str = "") -> str:
        lead = self._lead_in_list()
        closer = closer or _OPEN[char]
        self._closers.append(closer)
        self._filled.append(False)
        self._state = "key" if closer == "}" else "value"
        return lead + ("{" if closer == "}" else "[")

    def _close(self) -> str:
        self._filled.pop()
        self._state = "after"
        closer = self._closers.pop()
        self.ended = not self._closers
        return closer

    def _lead(self) -> str:
        lead = ", " if self._filled[-1] else ""
        self._filled[-1] = True
        return lead

    def _lead_in_list(self) -> str:
        return self._lead() if self._closers and self._closers[-1] == "]" else ""

    def _in_key(self, char: str) -> str:
        if char in ":=" and self._word.strip():
            name, self._word = self._word.strip(), ""
            self._state = "value"
            return self._lead() + _quoted(name) + ": "
        if char in _CLOSE:
            self._word = ""
            return self._close()
        if char in self._quotes and not self._word.strip():
            self._state, self._quote, self._word = "quoted_key", char, ""
        elif char != ",":
            self._word += char
        return ""

    def _in_quoted_key(self, char: str) -> str:
        if char == self._quote:
            self._state = "key"
        else:
            self._word += char
        return ""

    def _at_value(self, char: str) -> str:
        if char in _SPACE:
            return ""
        if char in _OPEN:
            return self._open(char, "]" if char == "(" else "")
        if char in self._quotes:
            self._state, self._quote = "text", char
            return self._lead_in_list() + '"'
        if char in _CLOSE:
            return ("null" if self._closers[-1] == "}" else "") + self._close()
        if char == ",":
            return ""
        self._state, self._word = "bare", char
        return ""

    def _after_value(self, char: str) -> str:
        made = ""
        if self._state == "bare":
            made = self._bare()
            self._state = "after"
        if char in _CLOSE:
            return made + self._close()
        if char == ",":
            self._state = "key" if self._closers[-1] == "}" else "value"
        return made

    def _bare(self) -> str:
        word, self._word = self._word.strip(), ""
        return self._lead_in_list() + _constant(word)

    def _in_text(self, char: str) -> str:
        if self._escape:
            return self._in_escape(char)
        if char == "\\" and self._quote:
            self._escape = char
            return ""
        if char and char == self._quote:
            self._state, self._held = "text_end", char
            return ""
        return _quoted(char)[1:-1]

    def _in_escape(self, char: str) -> str:
        self._escape += char
        kind = self._escape[1]
        digits = _HEX_DIGITS.get(kind, 0)
        if digits and len(self._escape) < 2 + digits:
            return ""
        escape, self._escape = self._escape, ""
        code = escape[2:]
        if digits and all(digit in "0123456789abcdefABCDEF" for digit in code):
            return f"\\u{code:0>4}"
        return _ESCAPES[kind] if kind in _ESCAPES else _quoted(escape)[1:-1]

    def _at_text_end(self, char: str) -> str:
        if char in _SPACE:
            self._held += char
            return ""
        if char in ",:" + _CLOSE:
            self._state = "after"
            return '"' + self._after_value(char)
        held, self._state = self._held, "text"
        return _quoted(held)[1:-1] + self._in_text(char)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


def _constant(word: str) -> str:
    """A number, true, false or null as JSON; any other word is a text."""
    word = _CONSTANTS.get(word, word)
    try:
        value = msgspec.json.decode(word)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _quoted(word)
    return word if value is None or isinstance(value, bool | int | float) else _quoted(word)
