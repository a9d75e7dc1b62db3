"""Reads a deployment's file.

    name = "demo"
    [instances.prefill]
    role = "prefill"
    count = 2
    [instances.decode]
    role = "decode"

A table of the file is a dataclass of `inlay.cluster.deployment`, and a key a field of it. Times are
written with their unit, `ttft = "500ms"`, and fields hold seconds: `ttft_s`.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from inlay.cluster.deployment import Deployment
from inlay.cluster.groups import (
    DispatcherGroup,
    InstanceGroup,
    Settings,
    StoreGroup,
    StoreNode,
    Tenant,
)
from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.core.overrides import convert
from inlay.core.units import parse_seconds

C = TypeVar("C")

_TIMES = ("ttft", "tbt", "itl", "drain", "start_timeout", "instance_wait", "stall")


def read_deployment(file: Path) -> Deployment:
    """Read a deployment file.

    Raises:
        ConfigError: it cannot be read, or does not fit together; names the key and the fix.
    """
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None
    try:
        return parse_deployment(tables)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def parse_deployment(tables: Settings) -> Deployment:
    """A deployment from the tables of its file.

    Raises:
        ConfigError: an unknown key, with the nearest one, or what does not fit together.
    """
    _check_keys("", tables, Deployment, without={})
    found: dict[str, Any] = {
        "instances": _named(tables, "instances", InstanceGroup, keep=("engine",)),
        "slo": _named(tables, "slo", SloClass, knows_name=True),
        "tenants": _named(tables, "tenants", Tenant),
        "engine": _table(tables, "engine", ""),
        "admission": _table(tables, "admission", ""),
    }
    if "dispatcher" in tables:
        table = _table(tables, "dispatcher", "")
        found["dispatcher"] = _read("dispatcher", table, DispatcherGroup, ("options", "serve"))
    if "store" in tables:
        table = _table(tables, "store", "")
        nodes = _named(table, "nodes", StoreNode, prefix="store.")
        rest = {key: value for key, value in table.items() if key != "nodes"}
        found["store"] = replace(_read("store", rest, StoreGroup), nodes=nodes)
    plain = {key: value for key, value in tables.items() if key not in (*found, "store")}
    return _build(Deployment, plain, found)


def _named(
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
        name: _read(
            f"{prefix}{key}.{name}", table, made, keep, {"name": name} if knows_name else {}
        )
        for name, table in (
            (name, _table(_table(tables, key, prefix), name, f"{prefix}{key}."))
            for name in _table(tables, key, prefix)
        )
    }


def _read(
    where: str,
    table: Settings,
    made: type[C],
    keep: Sequence[str] = (),
    ready: Settings | None = None,
) -> C:
    """One table; `keep` names those below it that stay plain data, `ready` is not in the file."""
    ready = ready or {}
    _check_keys(where, table, made, without=ready)
    kept = {key: _table(table, key, f"{where}.") for key in keep if key in table}
    plain = {key: value for key, value in table.items() if key not in kept}
    try:
        return _build(made, plain, {**kept, **ready})
    except ConfigError as error:
        raise ConfigError(f"[{where}] {error}") from error


def _build(made: type[C], plain: Settings, ready: Settings) -> C:
    """A dataclass from what a file says and what was made of it before."""
    hints = get_type_hints(made)
    values = {}
    for key, value in plain.items():
        name = _field(key)
        text = str(parse_seconds(value)) if name != key else _text(value)
        values[name] = convert(text, hints[name], key)
    return made(**values, **ready)


def _field(key: str) -> str:
    """The field of a key: times are written with their unit, and fields hold seconds."""
    return f"{key}_s" if key in _TIMES else key


def _check_keys(where: str, table: Settings, made: type[Any], without: Settings) -> None:
    names = [one.name for one in fields(made) if one.name not in without]
    known = [name[:-2] if name[:-2] in _TIMES else name for name in names]
    for key in table:
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(known)
            raise ConfigError(
                f"[{where}] has no key {key!r}: {hint}"
                if where
                else f"there is no key {key!r}: {hint}"
            )


def _table(tables: Settings, key: str, prefix: str) -> dict[str, Any]:
    found = tables.get(key, {})
    if not isinstance(found, dict):
        raise ConfigError(
            f"{prefix}{key} is {found!r}: it must be a table, written [{prefix}{key}]"
        )
    return found


def _text(value: Any) -> str:
    """A value as `apply_overrides` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
