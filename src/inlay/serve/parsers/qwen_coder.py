"""Qwen3-Coder: `<function=NAME><parameter=NAME>value</parameter></function>`, untyped text.

Arguments become JSON by the types that the request's tools declare.
"""

import msgspec

from inlay.serve.parsers.base import MarkerParser, ReaderOptions

_FUNCTION = "<function="
_FUNCTION_END = "</function>"
_PARAMETER = "<parameter="
_PARAMETER_END = "</parameter>"
_CALL = "<tool_call>"
_CALL_END = "</tool_call>"


class QwenCoderParser(MarkerParser):
    """Reads calls written as tags; each argument is passed on when it is complete."""

    tool_markers = (_CALL, _CALL_END, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END)

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._state = "outside"
        self._name = self._parameter = self._held = ""
        self._num_arguments = 0
        self._passed_on = False

    def _marker(self, marker: str) -> None:
        if self._state == "value":
            if marker == _PARAMETER_END:
                self._value_ended()
            else:
                self._held += marker
        elif marker == _FUNCTION:
            self._end()
            self._state, self._held = "function", ""
        elif marker == _PARAMETER and self._state == "inside":
            self._state, self._held = "parameter", ""
        elif marker in (_FUNCTION_END, _CALL_END):
            self._end()

    def _text(self, text: str) -> None:
        if self._state == "outside":
            self._say(text)
        elif self._state in ("function", "parameter"):
            name, end, rest = (self._held + text).partition(">")
            self._held = name
            if end:
                self._name_ended(name.strip())
                self._text(rest)
        elif self._state == "value":
            self._held += text

    def _name_ended(self, name: str) -> None:
        if self._state == "function":
            self._state, self._name, self._num_arguments = "inside", name, 0
            self._passed_on = self._call(name)
        else:
            self._state, self._parameter, self._held = "value", name, ""

    def _value_ended(self) -> None:
        self._state = "inside"
        text = self._held.removeprefix("\n").removesuffix("\n")
        types = self._options.parameter_types.get(self._name, {})
        value = _as_json(text, types.get(self._parameter))
        name = msgspec.json.encode(self._parameter).decode()
        opening = ", " if self._num_arguments else "{"
        self._num_arguments += 1
        if self._passed_on:
            self._arguments(f"{opening}{name}: {value}")

    def _end(self) -> None:
        if self._state == "value":
            self._value_ended()
        if self._state == "inside" and self._passed_on:
            self._arguments("}" if self._num_arguments else "{}")
        self._state = "outside"


def _as_json(text: str, kind: object) -> str:
    """A value as JSON: text unless its declared type is another and it can be read so."""
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is not None and "string" not in kinds:
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return text.strip()
    return msgspec.json.encode(text).decode()
