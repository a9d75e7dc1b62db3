"""What a `quantization_config` says, where nothing in it stays unread."""

from collections.abc import Mapping
from typing import Any

from inlay.core.errors import UnsupportedModelError


class Options:
    """Keys and values, each of which is asked for, known not to matter, or refused.

    Args:
        given: as config.json has them.
        where: begins the messages.
    """

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        self._given, self.where = given, where
        self._known = {"quant_method"}

    def get(self, key: str, default: Any = None) -> Any:
        """The value, or the default where there is none or null."""
        self._known.add(key)
        value = self._given.get(key)
        return default if value is None else value

    def one_of(self, key: str, allowed: tuple[Any, ...], default: Any = None) -> Any:
        """The value, which is one of these.

        Raises:
            UnsupportedModelError: it is not.
        """
        value = self.get(key, default)
        if not any(value == one and type(value) is type(one) for one in allowed):
            raise self.refused(key, value, ", ".join(repr(one) for one in allowed))
        return value

    def whole(self, key: str, default: int | None = None) -> int:
        """The value, a whole number above 0, or -1.

        Raises:
            UnsupportedModelError: it is something else.
        """
        value = self.get(key, default)
        if type(value) is not int or not (value == -1 or value > 0):
            raise self.refused(key, value, "a whole number above 0, and -1")
        return value

    def names(self, key: str) -> tuple[str, ...]:
        """The value, a list of names or patterns; empty without.

        Raises:
            UnsupportedModelError: it is something else.
        """
        value = self.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.refused(key, value, "a list of names")
        return tuple(value)

    def part(self, key: str) -> "Options":
        """The options in a value that is an object; it is empty where there is none.

        Raises:
            UnsupportedModelError: it is something else.
        """
        value = self.get(key, {})
        if not isinstance(value, dict):
            raise self.refused(key, value, "an object")
        return Options(value, f"{self.where}.{key}")

    def keys(self) -> tuple[str, ...]:
        """All that is given."""
        return tuple(self._given)

    def end(self, *passed_over: str) -> None:
        """Refuse what was not asked for.

        Args:
            passed_over: keys that say how weights were made or are to be computed with, not what
                they are.

        Raises:
            UnsupportedModelError: names the key and its value.
        """
        for key, value in self._given.items():
            if key not in self._known and key not in passed_over and value is not None:
                raise UnsupportedModelError(
                    f"{self.where}: {key} {value!r} is not known here, and might change what the "
                    "weights mean: take another variant of the model, or add the option to "
                    "inlay/core/published"
                )

    def refused(self, key: str, value: Any, supported: str) -> UnsupportedModelError:
        """What to raise for a value that is not read."""
        return UnsupportedModelError(
            f"{self.where}: {key} {value!r} is not supported; supported is {supported}"
        )
