r"""Placement rules as a user writes them, in KTransformers' YAML grammar.

    - match:                      # at least one of both; with both, both must fit
        name: "^model\\.layers\\.[0-9]\\.mlp\\.experts$"   # found anywhere in the dotted path
        class: torch.nn.Linear
      replace:
        class: ktransformers.operators.experts.KTransformersExperts     # or default
        kwargs: {generate_device: "cpu", prefill_device: "cuda:0"}
      recursive: False            # modules below are not looked at

The first rule that matches a module has it. This reads and checks the file alone, every message
with the rule's number and line; `inlay.experts.rule_placement` says what rules mean for a model.

Source: KTransformers' injection framework.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from inlay.core.errors import ConfigError
from inlay.core.text_files import read_text
from inlay.core.yaml_loader import YamlLoader
from inlay.experts.operators import BACKENDS, DEFAULT, KEYWORDS, OPERATORS, nearest

_KEYS = {
    "": ("match", "replace", "recursive"),
    "match": ("name", "class"),
    "replace": ("class", "kwargs"),
}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        number: from 1, in the order of the file.
        line: where it begins.
        name: must be found in a module's name; None: any name does.
        of_class: import path of the module's class; empty: any does.
        to_class: import path of what takes the module's place, or `default`.
        kwargs: its keywords; an operator may be None, which is none of its own for that phase.
        recursive: whether modules below it are looked at.
    """

    number: int
    line: int
    name: re.Pattern[str] | None = None
    of_class: str = ""
    to_class: str = DEFAULT
    kwargs: Mapping[str, Any]
    recursive: bool = True

    def __str__(self) -> str:
        return f"rule {self.number} (line {self.line})"


def read_rules(file: Path) -> tuple[Rule, ...]:
    """The rules of a file.

    Raises:
        ConfigError: it cannot be read, or is no list of rules; with the line.
    """
    try:
        text = read_text(file, error=ConfigError)
    except OSError as error:
        raise ConfigError(f"rules {file}: {error.strerror}") from None
    try:
        return parse_rules(text)
    except ConfigError as error:
        raise ConfigError(f"rules {file}: {error}") from None


def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules of a text. Raises as `read_rules`."""
    try:
        loader = YamlLoader(text)
        root = loader.get_single_node()
        if not isinstance(root, yaml.SequenceNode) or not root.value:
            raise ConfigError("it must be a list of rules, each with match and replace")
        return tuple(
            _Reader(loader, number, node).rule() for number, node in enumerate(root.value, start=1)
        )
    except yaml.YAMLError as error:
        raise ConfigError(f"not YAML: {_problem(error)}") from None
    except RecursionError as error:
        raise ConfigError(f"not YAML: {error}") from None


def _problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}{getattr(error, 'problem', None) or error}"


class _Reader:
    """One rule of a file; it knows where every key stands."""

    def __init__(self, loader: YamlLoader, number: int, node: yaml.Node) -> None:
        self._loader, self._number, self._node = loader, number, node

    def rule(self) -> Rule:
        parts = self._table(self._node, "")
        match = self._table(parts["match"], "match") if "match" in parts else {}
        if not match:
            raise self._wrong(self._node, "match needs a name, a class, or both")
        if "replace" not in parts:
            raise self._wrong(self._node, "replace is missing: a class, and kwargs with devices")
        replace = self._table(parts["replace"], "replace")
        kwargs = replace.get("kwargs")
        return Rule(
            number=self._number,
            line=_line(self._node),
            name=self._pattern(match["name"]) if "name" in match else None,
            of_class=self._text(match["class"], "class") if "class" in match else "",
            to_class=self._text(replace["class"], "class") if "class" in replace else DEFAULT,
            kwargs={} if kwargs is None else self._kwargs(kwargs),
            recursive=self._flag(parts["recursive"], "recursive") if "recursive" in parts else True,
        )

    def _kwargs(self, node: yaml.Node) -> dict[str, Any]:
        read = {
            "device": self._text,
            "operator": self._operator,
            "backend": self._backend,
            "map": self._map,
            "flag": self._flag,
            "count": self._count,
        }
        return {
            name: read[KEYWORDS[name].kind](value, name)
            for name, value in self._table(node, "kwargs").items()
        }

    def _table(self, node: yaml.Node, name: str) -> dict[str, yaml.Node]:
        """A mapping's values by key; an empty one may be left out."""
        known = KEYWORDS if name == "kwargs" else _KEYS[name]
        of = f"{name} " if name else ""
        if isinstance(node, yaml.ScalarNode) and self._value(node) is None and name:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, f"{of or 'a rule '}must be a table of {', '.join(known)}")
        found: dict[str, yaml.Node] = {}
        for key_node, value in node.value:
            key = str(self._scalar(key_node, "a key"))
            if key not in known:
                meant = nearest(key, known) or f"; there are {', '.join(known)}"
                raise self._wrong(key_node, f"{of}has no key {key!r}{meant}")
            if key in found:
                raise self._wrong(key_node, f"{of}has {key} twice")
            found[key] = value
        return found

    def _pattern(self, node: yaml.Node) -> re.Pattern[str]:
        text = self._text(node, "name")
        try:
            return re.compile(text)
        except re.error as error:
            raise self._wrong(node, f"name {text!r} is no regular expression: {error}") from None

    def _operator(self, node: yaml.Node, name: str) -> str | None:
        # `None` is a word in YAML; rules have it for no operator of a phase.
        value = self._scalar(node, name)
        return None if value in (None, "None") else self._one_of(node, name, OPERATORS)

    def _backend(self, node: yaml.Node, name: str) -> str:
        return self._one_of(node, name, BACKENDS)

    def _one_of(self, node: yaml.Node, name: str, known: Mapping[str, object]) -> str:
        value = self._text(node, name)
        if value not in known:
            meant = nearest(value, known) or f"; there are {', '.join(known)}"
            raise self._wrong(node, f"{name} is {value!r}, which Inlay does not know{meant}")
        return value

    def _map(self, node: yaml.Node, name: str) -> dict[int, str]:
        value = self._value(node)
        if not isinstance(value, dict) or not all(
            isinstance(layer, int) and not isinstance(layer, bool) and isinstance(device, str)
            for layer, device in value.items()
        ):
            raise self._wrong(node, f'{name} must give devices by layer, as {{30: "cuda:1"}}')
        return value

    def _text(self, node: yaml.Node, name: str) -> str:
        value = self._scalar(node, name)
        if not isinstance(value, str) or not value:
            raise self._wrong(node, f"{name} is {value!r}, not a text")
        return value

    def _flag(self, node: yaml.Node, name: str) -> bool:
        value = self._scalar(node, name)
        if not isinstance(value, bool):
            raise self._wrong(node, f"{name} is {value!r}, not True or False")
        return value

    def _count(self, node: yaml.Node, name: str) -> int:
        value = self._scalar(node, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(node, f"{name} is {value!r}, not a whole number from 0")
        return value

    def _scalar(self, node: yaml.Node, name: str) -> Any:
        # Lists and tables are not told: anchors can make them larger than any memory.
        if not isinstance(node, yaml.ScalarNode):
            raise self._wrong(node, f"{name} is a list or a table, not one value")
        return self._value(node)

    def _value(self, node: yaml.Node) -> Any:
        return self._loader.construct_object(node, deep=True)

    def _wrong(self, node: yaml.Node, what: str) -> ConfigError:
        return ConfigError(f"rule {self._number} (line {_line(node)}): {what}")


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
