"""YAML's safe loader, whose every failure is a `yaml.YAMLError` that knows the line."""

from typing import Any

import yaml
from yaml.constructor import ConstructorError


class YamlLoader(yaml.SafeLoader):
    """`yaml.SafeLoader` for files of people.

    The base class lets errors of Python pass where a value is none of its tag: an `IndexError` for
    an empty `!!int`, a `KeyError` for `!!bool maybe`, a `ValueError` for a 31st of February.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As the base class does it."""
        try:
            return super().construct_object(node, deep)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
            value = f" {node.value!r}" if isinstance(node, yaml.ScalarNode) else ""
            raise ConstructorError(
                problem=f"{kind}{value} cannot be read ({error})", problem_mark=node.start_mark
            ) from error
