"""What a key of a fine-tuning file is: its type, default, allowed values, and what it does here.

`inlay.tune.config` declares the keys that are honoured, as fields; `inlay.tune.other_keys` those
of LLaMA-Factory, Transformers and KTransformers that are read and have no effect, or are refused.
This module knows neither.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from inlay.core.errors import ConfigError
from inlay.core.overrides import convert

_META = "inlay.tune.key"


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key.

    Attributes:
        does: what it does, in a few words; of a key that is not honoured, why.
        name: as it is written in a file.
        hint: type of its value.
        default: its value where a file does not say; MISSING where it must.
        low: least allowed value.
        above: the value must be greater than this.
        high: greatest allowed value.
        below: the value must be less than this.
        why_not: added to the message about a value that is not allowed.
    """

    does: str
    name: str = ""
    hint: Any = str
    default: Any = None
    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    why_not: str = ""

    @property
    def type_name(self) -> str:
        """Its type in words, such as `int or none`."""
        return _type_name(self.hint)

    def read(self, value: Any) -> Any:
        """What a file or an argument says, as a value of the key's type.

        Args:
            value: what YAML made of it, or text.

        Raises:
            ConfigError: it is not of the type; the message has both.
        """
        if value is None and type(None) in get_args(self.hint):
            return None
        if value is False and "no" in _choices(self.hint):
            return "no"  # YAML reads the word so
        if isinstance(value, (list, tuple)):
            value = ",".join(str(item) for item in value)
        elif isinstance(value, Mapping):
            raise ConfigError(f"{self.name} is a table: must be {self.type_name}")
        elif isinstance(value, float) and self.hint is int and value == int(value):
            value = int(value)
        if choices := _choices(self.hint):
            chosen = {str(choice): choice for choice in choices}.get(_text(value), value)
            self.check(chosen)
            return chosen
        return convert(_text(value), self.hint, self.name)

    def check(self, value: Any) -> None:
        """Refuse a value outside of what is allowed.

        Raises:
            ConfigError: it is; the message has the value and what is allowed.
        """
        if value is None:
            return
        if choices := _choices(self.hint):
            if value not in choices:
                words = " or ".join(str(choice) for choice in choices)
                raise self._with_reason(f"{self.name}={value}: must be {words}")
            return
        if isinstance(value, tuple) and "" in value:
            raise ConfigError(
                f"{self.name}={','.join(map(str, value))}: has an empty entry: take a comma away"
            )
        if any(
            "\0" in one
            for one in (value if isinstance(value, tuple) else (value,))
            if isinstance(one, str)
        ):
            raise ConfigError(f"{self.name}={value!r}: has a zero byte, as no name and text has")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return
        finite = not isinstance(value, float) or math.isfinite(value)
        inside = (
            finite
            and (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
        )
        if not inside:
            wanted = [self.range] if finite else ["finite", *([self.range] if self.range else [])]
            raise self._with_reason(f"{self.name}={value}: must be {' and '.join(wanted)}")

    @property
    def range(self) -> str:
        """The allowed values of a number, such as `at least 0 and less than 1`."""
        parts = (
            (self.low, "at least"),
            (self.above, "greater than"),
            (self.high, "at most"),
            (self.below, "less than"),
        )
        return " and ".join(f"{words} {limit:g}" for limit, words in parts if limit is not None)

    def _with_reason(self, message: str) -> ConfigError:
        return ConfigError(f"{message} ({self.why_not})" if self.why_not else message)


def key(default: Any, does: str, **limits: Any) -> Any:
    """A dataclass field that is a key, with what `Key` says of it."""
    return dataclasses.field(
        default=default, metadata={_META: Key(does=does, default=default, **limits)}
    )


def keys_of(config_type: type[Any]) -> dict[str, Key]:
    """The keys that the fields of a dataclass declare, in their order."""
    hints = get_type_hints(config_type)
    return {
        field.name: dataclasses.replace(
            field.metadata[_META], name=field.name, hint=hints[field.name]
        )
        for field in dataclasses.fields(config_type)
        if _META in field.metadata
    }


def required(does: str) -> Any:
    """A dataclass field that is a key without a default."""
    return dataclasses.field(metadata={_META: Key(does=does, default=dataclasses.MISSING)})


def _choices(hint: Any) -> tuple[Any, ...]:
    """The values that a `Literal` names, alone or beside None."""
    found: tuple[Any, ...] = ()
    for member in get_args(hint):
        if isinstance(member, (str, int)) and not isinstance(member, bool):
            found += (member,)
        elif get_args(member) and not isinstance(member, type):
            found += _choices(member)
    return found


def _type_name(hint: Any) -> str:
    if hint is type(None):
        return "none"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__name__
    if choices := _choices(hint):
        optional = type(None) in get_args(hint)
        return ", ".join([str(choice) for choice in choices] + ["none"] * optional)
    if getattr(hint, "__origin__", None) is tuple:
        return f"list of {_type_name(get_args(hint)[0])}"
    return " or ".join(_type_name(member) for member in get_args(hint))


def _text(value: Any) -> str:
    """A plain value as `core.overrides` reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)
