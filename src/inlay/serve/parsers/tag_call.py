"""What notations share that write each argument of a call by itself, as text.

Arguments become JSON by the types that the request's tools declare.
"""

import msgspec

from inlay.serve.parsers.base import MarkerParser, ReaderOptions

_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class TagCallParser(MarkerParser):
    """Base of these readers; each argument is passed on when it is complete."""

    def __init__(self, options: ReaderOptions) -> None:
        super().__init__(options)
        self._name = ""
        self._num_arguments = 0
        self._calling = self._passed_on = False

    def _begin_call(self, name: str) -> None:
        self._name, self._num_arguments, self._calling = name, 0, True
        self._passed_on = self._call(name)

    def _add_argument(self, parameter: str, text: str, *, is_text: bool | None = None) -> None:
        """Pass an argument on.

        Args:
            is_text: what the notation itself says of it; None where it does not.
        """
        kind = self._options.parameter_types.get(self._name, {}).get(parameter)
        if is_text is not None:
            kind = "string" if is_text else "any"
        opening = ", " if self._num_arguments else "{"
        self._num_arguments += 1
        if self._passed_on:
            name = msgspec.json.encode(parameter).decode()
            self._arguments(f"{opening}{name}: {_as_json(text, kind)}")

    def _end_call(self, body: str = "") -> None:
        """The call is over.

        Args:
            body: text of the call outside of arguments; all of them as one JSON object, perhaps.
        """
        if self._calling and self._passed_on:
            if self._num_arguments:
                self._arguments("}")
            else:
                self._arguments(body.strip() if _is_object(body) else "{}")
        self._calling = False


def _as_json(text: str, kind: object) -> str:
    """A value as JSON: text unless its declared type is another and it can be read so."""
    kinds = kind if isinstance(kind, list) else [kind]
    if kind is not None and "string" not in kinds:
        value = text.strip()
        value = _CONSTANTS.get(value, value)
        try:
            msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        else:
            return value
    return msgspec.json.encode(text).decode()


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
