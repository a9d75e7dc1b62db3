"""`path.to.field=value`: change single fields of nested frozen dataclasses from text.

Options such as `--set` stand on this. It knows dataclasses and type hints, and nothing of what
the fields mean. All assignments are applied together, so every `__post_init__` sees the final
values only, never a state between two assignments.
"""

import dataclasses
import difflib
import enum
import json
import types
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from inlay.core.errors import ConfigError
from inlay.core.units import parse_bytes

C = TypeVar("C")

_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_NONE = frozenset({"none", "null"})


def apply_overrides(
    config: C,
    assignments: Sequence[str],
    *,
    option: str = "--set",
    form: str = "path.to.field=value",
) -> C:
    """Return a copy of `config` with the fields named by `assignments` replaced.

    Args:
        config: an instance of a dataclass, whose fields may be dataclasses again.
        assignments: `path.to.field=value` each; the last one wins where a path repeats.
            Values: numbers; `true/false/yes/no/on/off`; `none` for optional fields; the value or
            name of an enum; `20GiB` for fields called `..._bytes`; `a,b,c` or JSON for sequences;
            JSON for dicts.
        option: what the user wrote before the assignment; begins the message of every error.
        form: what to write, in the message about a text that is no assignment.

    Raises:
        ConfigError: not an assignment, an unknown field (with the nearest name), a value that
            does not fit the field's type, or one that the dataclass itself refuses.
    """
    tree: dict[str, Any] = {}
    try:
        for assignment in assignments:
            path, separator, text = assignment.partition("=")
            path = path.strip()
            if not separator or not path:
                raise ConfigError(f"{assignment}: write {form}")
            _plant(tree, path, text.strip())
        rebuilt: C = _rebuild(config, tree, "")
    except ConfigError as error:
        raise ConfigError(f"{option} {error}") from error
    return rebuilt


def check_paths(config_type: type[Any], paths: Iterable[str], *, option: str) -> None:
    """Check that all paths name fields of a dataclass type, or of those below it.

    Args:
        option: begins the message, as in `apply_overrides`, which checks the values.

    Raises:
        ConfigError: one does not; with the nearest name.
    """
    for path in paths:
        prefix, below = "", config_type
        for name in path.split("."):
            hints = _fields(below)
            if name not in hints:
                raise ConfigError(f"{option} {_unknown_field(prefix + name, name, prefix, below)}")
            prefix, nested = f"{prefix}{name}.", _dataclass_in(hints[name])
            if nested is None:
                break
            below = nested


def field_paths(config_type: type[Any], prefix: str = "") -> list[str]:
    """All paths that can be set below a dataclass type, in the order of its fields."""
    paths: list[str] = []
    for name, hint in _fields(config_type).items():
        nested = _dataclass_in(hint)
        paths += [prefix + name] if nested is None else field_paths(nested, f"{prefix}{name}.")
    return paths


def convert(text: str, hint: Any, path: str) -> Any:
    """Turn `text` into a value of the type `hint`; `path` names the field in errors."""
    hint = _unaliased(hint)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(text, args, path)
    if origin is Literal:
        by_text = {str(choice): choice for choice in args}
        if text not in by_text:
            raise _bad(path, text, "one of " + ", ".join(by_text), text, list(by_text))
        return by_text[text]
    if origin in (tuple, list, Sequence, frozenset, set):
        return _convert_sequence(text, origin, args, path)
    if origin is dict or hint is dict:
        return _parse_json(text, dict, "a JSON object", path)
    return _convert_scalar(text, hint, path)


def _plant(tree: dict[str, Any], path: str, text: str) -> None:
    """Put `text` into the nested dict at `path`."""
    *parents, leaf = path.split(".")
    for depth, name in enumerate(parents):
        below = tree.setdefault(name, {})
        if not isinstance(below, dict):
            taken = ".".join(parents[: depth + 1])
            raise ConfigError(f"{path}: {taken} is set as a whole as well")
        tree = below
    if isinstance(tree.get(leaf), dict):
        raise ConfigError(f"{path}: fields below it are set as well")
    tree[leaf] = text


def _rebuild(config: Any, tree: dict[str, Any], prefix: str) -> Any:
    """Replace the fields in `tree`, deepest first."""
    hints = _fields(type(config))
    changes: dict[str, Any] = {}
    for name, value in tree.items():
        path = prefix + name
        if name not in hints:
            raise _unknown_field(path, name, prefix, type(config))
        nested = _dataclass_in(hints[name])
        if isinstance(value, dict):
            changes[name] = _rebuild(_child(config, name, nested, path), value, path + ".")
        elif nested is not None and value.lower() not in _NONE:
            first = field_paths(nested, path + ".")
            raise ConfigError(
                f"{path}: a group of fields; set one of them, for example {first[0]}=..."
                if first
                else f"{path}: has no fields"
            )
        else:
            changes[name] = convert(value, hints[name], path)
    try:
        return dataclasses.replace(config, **changes)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(str(error)) from error


def _child(config: Any, name: str, nested: type[Any] | None, path: str) -> Any:
    """The dataclass instance to go on with; a fresh default where the field is None."""
    if nested is None:
        raise ConfigError(f"{path}: is a single value and has no fields below it")
    current = getattr(config, name)
    if current is not None:
        return current
    try:
        return nested()
    except TypeError as error:
        raise ConfigError(
            f"{path}: not configured, and {nested.__name__} has no defaults"
        ) from error


def _fields(config_type: type[Any]) -> dict[str, Any]:
    """Settable fields of a dataclass type and their hints."""
    hints = get_type_hints(config_type)
    return {f.name: hints[f.name] for f in dataclasses.fields(config_type) if f.init}


def _dataclass_in(hint: Any) -> type[Any] | None:
    """The dataclass that a hint names, directly or as `X | None`."""
    hint = _unaliased(hint)
    for candidate in (hint, *get_args(hint)):
        if isinstance(candidate, type) and dataclasses.is_dataclass(candidate):
            return candidate
    return None


def _unaliased(hint: Any) -> Any:
    """What a `type X = ...` alias or an `Annotated[X, ...]` stands for."""
    while hasattr(hint, "__value__") or hasattr(hint, "__metadata__"):
        hint = hint.__value__ if hasattr(hint, "__value__") else hint.__origin__
    return hint


def _convert_union(text: str, args: tuple[Any, ...], path: str) -> Any:
    """The first member that takes the text; `none` first where None is a member."""
    if type(None) in args and text.lower() in _NONE:
        return None
    members = [arg for arg in args if arg is not type(None)]
    # `str` takes anything, so it comes last.
    members.sort(key=lambda arg: arg is str)
    failure: ConfigError | None = None
    for member in members:
        try:
            return convert(text, member, path)
        except ConfigError as error:
            failure = error
    assert failure is not None
    named = [str(choice) for member in members for choice in get_args(member)]
    if not named or len(members) == 1:
        raise failure
    raise ConfigError(f"{failure}, or one of {', '.join(named)}") from None


def _convert_sequence(text: str, origin: Any, args: tuple[Any, ...], path: str) -> Any:
    """`a,b,c` or a JSON array into a tuple, list or set of converted items."""
    if text.startswith("["):
        items = [
            item if isinstance(item, str) else json.dumps(item)
            for item in _parse_json(text, list, "a JSON array", path)
        ]
    else:
        items = [item.strip() for item in text.split(",")] if text else []
    container = origin if origin is not Sequence else tuple
    fixed = origin is tuple and args and args[-1] is not Ellipsis
    if fixed:
        if len(items) != len(args):
            raise _bad(path, text, f"{len(args)} values with commas between them")
        return tuple(convert(item, hint, path) for item, hint in zip(items, args, strict=True))
    item_hint = args[0] if args else str
    return container(convert(item, item_hint, path) for item in items)


def _convert_scalar(text: str, hint: Any, path: str) -> Any:
    """Numbers, booleans, text, files and enums."""
    if hint is bool:
        if text.lower() in _TRUE | _FALSE:
            return text.lower() in _TRUE
        raise _bad(path, text, "true or false")
    if hint is int:
        return _convert_int(text, path)
    if hint is float:
        try:
            return float(text)
        except ValueError:
            raise _bad(path, text, "a number") from None
    if hint in (str, Any):
        return text
    if hint is Path:
        return Path(text).expanduser()
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        for member in hint:
            if text in (str(member.value), member.name, member.name.lower()):
                return member
        values = [str(member.value) for member in hint]
        raise _bad(path, text, "one of " + ", ".join(values), text, values)
    raise ConfigError(f"{path}: a field of type {hint!r} cannot be set from text")


def _convert_int(text: str, path: str) -> int:
    """A whole number; a size with a unit for fields called `..._bytes`."""
    sizes = path.rpartition(".")[2].endswith("_bytes")
    try:
        return int(text.replace("_", ""))
    except ValueError:
        pass
    if sizes:
        try:
            return parse_bytes(text)
        except ConfigError:
            raise _bad(path, text, "a size such as 512MiB or 20GiB") from None
    raise _bad(path, text, "a whole number")


def _parse_json(text: str, expected: type[Any], words: str, path: str) -> Any:
    """JSON text of one kind."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        value = None
    if not isinstance(value, expected):
        raise _bad(path, text, words)
    return value


def _bad(
    path: str, text: str, wanted: str, near: str | None = None, choices: Sequence[str] = ()
) -> ConfigError:
    """The error for a value that does not fit."""
    return ConfigError(f"{path}={text}: must be {wanted}{_hint(near or '', choices)}")


def _unknown_field(path: str, name: str, prefix: str, config_type: type[Any]) -> ConfigError:
    """The error for a field that does not exist, with the nearest or else all names."""
    names = list(_fields(config_type))
    everywhere = [p for p in field_paths(config_type, prefix) if p.rpartition(".")[2] == name]
    hint = f". Did you mean {everywhere[0]}?" if everywhere else _hint(name, names, prefix)
    where = prefix.rstrip(".") or "the configuration"
    listing = "" if hint else "; fields: " + ", ".join(names)
    return ConfigError(f"{path}: {where} has no field {name!r}{hint}{listing}")


def _hint(near: str, choices: Sequence[str], prefix: str = "") -> str:
    """`. Did you mean x?` where a choice is close."""
    close = difflib.get_close_matches(near, choices, n=1, cutoff=0.6)
    return f". Did you mean {prefix}{close[0]}?" if close else ""
