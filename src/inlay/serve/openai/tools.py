"""Tools of a chat request: checked, chosen, and enforced by a JSON schema where asked for."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from inlay.core.errors import RequestError
from inlay.core.messages import Structure
from inlay.serve.openai.structure import json_schema
from inlay.serve.parsers import Dialect

Mode = Literal["none", "auto", "required", "named"]


class ToolPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a request wants of its tools.

    Attributes:
        mode: `named` forces the function `name`, `required` any of them.
        tools: as the template sees them; empty in mode `none`.
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
    dialect: Dialect,
) -> ToolPlan:
    """Check tools and tool choice.

    Raises:
        RequestError: a tool is not of the protocol's form, the choice names none of them, or the
            model's chat template has no place for tools.
    """
    found = [_tool(i, tool) for i, tool in enumerate(tools or ())]
    names = [tool["function"]["name"] for tool in found]
    mode, name = _mode(choice, names)
    if mode == "none":
        return ToolPlan()
    if not dialect.takes_tools:
        raise RequestError(
            "this model's chat template has no place for tools, so it cannot call any: leave out "
            "tools, or set tool_choice to 'none'",
            "tools",
        )
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
    properties = _parameters(tool).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {
        name: schema.get("type") for name, schema in properties.items() if isinstance(schema, dict)
    }


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
