"""A run's settings from a YAML file and `key=value` arguments, as LLaMA-Factory takes them.

Every key is a setting, another name of one, idle (it has no effect, and a line says why), or
refused. Anything else is a mistake, and the message has the nearest name.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

import yaml

from inlay.core.errors import ConfigError
from inlay.core.text_files import read_text
from inlay.core.yaml_loader import YamlLoader
from inlay.tune.config import TUNE_KEYS, TuneConfig
from inlay.tune.keys import Key
from inlay.tune.other_keys import ALIASES, IDLE_KEYS, KT_TABLE, REFUSED_KEYS


@dataclass(frozen=True)
class ReadConfig:
    """What a file and arguments said.

    Attributes:
        config: the settings.
        idle: keys that were given and have no effect, each with the reason.
        notes: what else is not as a file may have meant it, a line each.
    """

    config: TuneConfig
    idle: Mapping[str, str]
    notes: tuple[str, ...] = ()


def read_config(file: Path | None, arguments: Sequence[str] = ()) -> ReadConfig:
    """Settings from a file, with arguments over it.

    Args:
        file: YAML; None: the arguments alone.
        arguments: `key=value` each; values are written as in YAML.

    Raises:
        ConfigError: the file cannot be read, a key is unknown or refused, or a value is not
            allowed.
    """
    said = _flat(_read_yaml(file) if file else {}, str(file))
    said |= _flat(_read_arguments(arguments), "the arguments")
    return _understand(said, str(file) if file else "the arguments")


def known_keys() -> dict[str, Key]:
    """Every key that may stand in a file, by name."""
    aliases = {name: alias.key for name, alias in ALIASES.items()}
    return TUNE_KEYS | aliases | IDLE_KEYS | REFUSED_KEYS


def _read_yaml(file: Path) -> dict[str, Any]:
    try:
        found = yaml.load(read_text(file, error=ConfigError), _Loader)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"{file}{where} is no YAML: {problem}") from None
    except RecursionError as error:
        raise ConfigError(f"{file} is no YAML: {error}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(f"{file} is no table of keys: write one key: value in a line")
    return found


class _Loader(YamlLoader):
    """YAML in which no key stands twice: of two values the first would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """As the base class does it."""
        lines: dict[str, int] = {}
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in lines:
                raise yaml.constructor.ConstructorError(
                    problem=f"{key.value} is in line {lines[key.value]} as well: leave one",
                    problem_mark=key.start_mark,
                )
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep)


def _read_arguments(arguments: Sequence[str]) -> dict[str, Any]:
    """`key=value` into what YAML would have made of it; dots reach into `kt_config`."""
    said: dict[str, Any] = {}
    for argument in arguments:
        name, separator, text = argument.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"{argument}: write key=value")
        try:
            value = yaml.load(text, YamlLoader) if text.strip() else None
        except (yaml.YAMLError, RecursionError):
            value = text
        name = name.strip()
        if name.startswith(f"{KT_TABLE}."):
            said.setdefault(KT_TABLE, {})[name.removeprefix(f"{KT_TABLE}.")] = value
        else:
            said[name] = value
    return said


def _flat(said: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The keys of `kt_config` among the others.

    Raises:
        ConfigError: one is in both with two values, or the table is none.
    """
    flat = {str(name): value for name, value in said.items() if name != KT_TABLE}
    table = said.get(KT_TABLE) or {}
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where}: {KT_TABLE} is {table!r}: must be a table of keys")
    for name, value in table.items():
        full = _kt_name(str(name))
        if full in flat and flat[full] != value:
            raise ConfigError(
                f"{where}: {full}={flat[full]} and {KT_TABLE}.{name}={value} disagree: give one"
            )
        flat[full] = value
    return flat


def _kt_name(name: str) -> str:
    return name if name in known_keys() or name.startswith("kt_") else f"kt_{name}"


def _understand(said: Mapping[str, Any], where: str) -> ReadConfig:
    """Settings, idle keys and notes of what was said."""
    settings: dict[str, Any] = {}
    idle: dict[str, str] = {}
    by_alias: dict[str, str] = {}
    try:
        for name, value in said.items():
            if name in TUNE_KEYS:
                _set(settings, TUNE_KEYS[name], value)
            elif name in ALIASES:
                by_alias |= _aliased(name, value, settings, said, by_alias)
            elif name in IDLE_KEYS:
                IDLE_KEYS[name].read(value)
                idle[name] = IDLE_KEYS[name].does
            elif name in REFUSED_KEYS:
                _refuse(REFUSED_KEYS[name], value)
            else:
                raise _unknown(name)
        for name, declared in TUNE_KEYS.items():
            if declared.default is MISSING and settings.get(name) is None:
                raise ConfigError(f"{name} is missing: {declared.does}")
        config = TuneConfig(**settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return ReadConfig(config, idle, _notes(config))


def _set(settings: dict[str, Any], declared: Key, value: Any) -> None:
    """One setting; an empty value is the default, as where a key is left out."""
    read = None if value is None or value == [] else declared.read(value)
    if read is not None:
        settings[declared.name] = read


def _aliased(
    name: str,
    value: Any,
    settings: dict[str, Any],
    said: Mapping[str, Any],
    by_alias: Mapping[str, str],
) -> dict[str, str]:
    """Set what an alias stands for; the setting's own name wins, two aliases must agree."""
    alias = ALIASES[name]
    if value is None or said.get(alias.setting) is not None:
        return {}
    read = alias.key.read(value)
    if alias.values:
        if str(read).lower() not in alias.values:
            raise ConfigError(f"{name}={read}: must be one of {', '.join(alias.values)}")
        read = alias.values[str(read).lower()]
    read = TUNE_KEYS[alias.setting].read(read)
    before = by_alias.get(alias.setting)
    if before is not None and settings[alias.setting] != read:
        raise ConfigError(
            f"{before}={said[before]} and {name}={value} disagree: give one, or {alias.setting}"
        )
    settings[alias.setting] = read
    return {alias.setting: name}


def _refuse(refused: Key, value: Any) -> None:
    """Raise ConfigError where a refused key asks for something."""
    if value is None or value == "":
        return
    read = refused.read(value)
    if read != refused.default:
        raise ConfigError(
            f"{refused.name}={value}: must be left out, or {refused.default}: {refused.does}"
        )


def _unknown(name: str) -> ConfigError:
    near = difflib.get_close_matches(name, known_keys(), n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else "inlay tune keys lists all"
    return ConfigError(f"there is no key {name!r}: {hint}")


def _notes(config: TuneConfig) -> tuple[str, ...]:
    if config.neat_packing or not config.packing:
        return ()
    return (
        "packing: samples of a row never see each other here, which LLaMA-Factory does with "
        "neat_packing alone",
    )
