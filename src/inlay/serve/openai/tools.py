"""Tools of a chat request: checked, chosen, and enforced by a JSON schema where asked for."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from inlay.core.errors import RequestError
from inlay.core.messages import Structure
from inlay.serve.openai.structure import json_schema

Mode = Literal["none", "auto", "required", "named"]

_MAX_DEPTH = 8
"""References and alternatives inside each other, beyond which a type is not known."""
_JSON_TYPES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    list: "array",
    dict: "object",
}


class ToolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants of its tools.

    Attributes:
        mode: `named` forces the function `name`, `required` any of them.
        tools: as the request has them; empty in mode `none`.
        structure: the grammar that enforces modes `named` and `required`.
        parameter_types: JSON types of the parameters, by function and parameter.
    """

    mode: Mode = "none"
    tools: list[dict[str, Any]] = []
    name: str = ""
    names: frozenset[str] = frozenset()
    parallel: bool = True
    structure: Structure | None = None
    parameter_types: dict[str, dict[str, object]] = {}


def plan_tools(
    tools: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    parallel: bool | None,
) -> ToolPlan:
    """Check tools and tool choice.

    Raises:
        RequestError: a tool is not of the protocol's form, or the choice names none of them.
    """
    found = [_tool(i, tool) for i, tool in enumerate(tools or ())]
    names = [tool["function"]["name"] for tool in found]
    mode, name = _mode(choice, names)
    if mode == "none":
        return ToolPlan()
    several = parallel is not False
    structure = None
    if mode == "named":
        structure = json_schema(_parameters(found[names.index(name)]))
    elif mode == "required":
        structure = json_schema(_calls_schema(found, several))
    return ToolPlan(
        mode=mode,
        tools=found,
        name=name,
        names=frozenset(names),
        parallel=several,
        structure=structure,
        parameter_types={tool["function"]["name"]: _types(tool) for tool in found},
    )


def _types(tool: Mapping[str, Any]) -> dict[str, object]:
    parameters = _parameters(tool)
    properties = parameters.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {name: sorted(_kinds(schema, parameters)) or None for name, schema in properties.items()}


def _kinds(schema: object, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """The JSON types that a schema allows, as far as it says so itself; `root` has definitions."""
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return set()
    declared = schema.get("type")
    kinds = {kind for kind in (declared if isinstance(declared, list) else [declared]) if kind}
    if kinds:
        return {str(kind) for kind in kinds}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return {_JSON_TYPES.get(type(value), "any") for value in values}
    found: set[str] = set()
    for key in ("anyOf", "oneOf", "allOf"):
        members = schema.get(key)
        for member in members if isinstance(members, list) else ():
            found |= _kinds(member, root, depth + 1)
    reference = schema.get("$ref")
    if isinstance(reference, str):
        _, _, path = reference.partition("#/")
        key, _, name = path.partition("/")
        definitions = root.get(key)
        if isinstance(definitions, dict):
            found |= _kinds(definitions.get(name), root, depth + 1)
    return found


def _tool(index: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    where = f"tools[{index}]"
    if tool.get("type") != "function":
        raise RequestError(
            f"{where}.type is {tool.get('type')!r}: only 'function' is supported", where
        )
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"{where}.function must be an object", where)
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where}.function.name must be a text that is not empty", where)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(f"{where}.function.parameters must be a JSON schema", where)
    for key in ("$defs", "definitions"):
        if not isinstance((parameters or {}).get(key) or {}, dict):
            raise RequestError(f"{where}.function.parameters.{key} must be an object", where)
    return {**tool, "function": {k: v for k, v in function.items() if v is not None}}


def _mode(choice: str | Mapping[str, Any] | None, names: list[str]) -> tuple[Mode, str]:
    if choice is None or choice == "auto":
        return ("auto" if names else "none"), ""
    if choice == "none":
        return "none", ""
    if not names:
        raise RequestError("tool_choice is given without tools", "tool_choice")
    if choice == "required":
        return "required", ""
    if isinstance(choice, str):
        raise RequestError(
            f"tool_choice is {choice!r}: it must be 'none', 'auto', 'required' or name a function",
            "tool_choice",
        )
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else choice.get("name")
    if name not in names:
        raise RequestError(
            f"tool_choice names the function {name!r}, but tools has {', '.join(names)}",
            "tool_choice",
        )
    return "named", str(name)


def _parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object even where it does not say so."""
    parameters: dict[str, Any] | None = tool["function"].get("parameters")
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **parameters}


def _calls_schema(tools: Sequence[Mapping[str, Any]], several: bool) -> dict[str, Any]:
    """The schema of a list of calls `{"name": ..., "arguments": {...}}`.

    Definitions inside a tool's schema move to the top, under names of their own, so that their
    references stay right.
    """
    definitions: dict[str, Any] = {}
    kinds = []
    for i, tool in enumerate(tools):
        parameters = dict(_parameters(tool))
        moved: dict[str, str] = {}
        for key in ("$defs", "definitions"):
            for name, definition in (parameters.pop(key, None) or {}).items():
                moved[f"#/{key}/{name}"] = f"#/$defs/tool{i}_{name}"
                definitions[f"tool{i}_{name}"] = definition
        for name in list(definitions):
            if name.startswith(f"tool{i}_"):
                definitions[name] = _redirect(definitions[name], moved)
        kinds.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool["function"]["name"]},
                    "arguments": _redirect(parameters, moved),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": kinds[0] if len(kinds) == 1 else {"anyOf": kinds},
    }
    if not several:
        schema["maxItems"] = 1
    if definitions:
        schema["$defs"] = definitions
    return schema


def _redirect(schema: Any, moved: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_redirect(item, moved) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: moved.get(value, value)
        if key == "$ref" and isinstance(value, str)
        else _redirect(value, moved)
        for key, value in schema.items()
    }
