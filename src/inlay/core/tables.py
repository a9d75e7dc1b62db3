"""Dataclasses from the tables of a TOML file: a key is a field, and times are written with a unit.

A field `wait_s` is the key `wait`, and a file says `wait = "500ms"`. Errors name the table and the
key, and the nearest key where one is unknown.
"""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from inlay.core.errors import ConfigError
from inlay.core.overrides import convert
from inlay.core.text_files import read_text
from inlay.core.units import parse_seconds

C = TypeVar("C")

Settings = Mapping[str, Any]
"""Nested plain data, as it is in the file."""

_TIME = "_s"


def read_toml(file: Path) -> dict[str, Any]:
    """The tables of a file.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(read_text(file, error=ConfigError))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None


def sub_table(tables: Settings, key: str, prefix: str = "") -> dict[str, Any]:
    """The table under a key, empty where there is none; `prefix` is what it lies in, with a dot."""
    found = tables.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(
            f"{prefix}{key} is {found!r}: it must be a table, written [{prefix}{key}]"
        )
    return found


def named_tables(
    tables: Settings,
    key: str,
    made: type[C],
    *,
    prefix: str = "",
    keep: Sequence[str] = (),
    knows_name: bool = False,
) -> dict[str, C]:
    """Tables below a table, each under a name of the user's, which may be a field of it."""
    return {
        name: read_table(
            f"{prefix}{key}.{name}", table, made, keep, {"name": name} if knows_name else {}
        )
        for name, table in (
            (name, sub_table(sub_table(tables, key, prefix), name, f"{prefix}{key}."))
            for name in sub_table(tables, key, prefix)
        )
    }


def read_table(
    where: str,
    table: Settings,
    made: type[C],
    keep: Sequence[str] = (),
    ready: Settings | None = None,
) -> C:
    """One table; `keep` names those below it that stay plain data, `ready` is not in the file."""
    ready = ready or {}
    check_keys(where, table, made, without=ready)
    kept = {key: sub_table(table, key, f"{where}.") for key in keep if key in table}
    plain = {key: value for key, value in table.items() if key not in kept}
    try:
        return build(made, plain, {**kept, **ready})
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from error


def build(made: type[C], plain: Settings, ready: Settings) -> C:
    """A dataclass from what a file says and what was made of it before."""
    hints = get_type_hints(made)
    values = {}
    for key, value in plain.items():
        is_time = key not in hints
        text = str(parse_seconds(value)) if is_time else _text(value)
        name = f"{key}{_TIME}" if is_time else key
        values[name] = convert(text, hints[name], key)
    return made(**values, **ready)


def check_keys(where: str, table: Settings, made: type[Any], without: Settings) -> None:
    """Refuse keys that are no field of a dataclass; `without` are fields no file may set.

    Raises:
        ConfigError: one is unknown.
    """
    known = [one.name.removesuffix(_TIME) for one in fields(made) if one.name not in without]
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(known)
            raise ConfigError(
                f"[{where}] has no key {key!r}: {hint}"
                if where
                else f"there is no key {key!r}: {hint}"
            )


def _text(value: Any) -> str:
    """A value as `core.overrides` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
