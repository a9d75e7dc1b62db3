"""Which grammar a request asks its output to follow, in OpenAI's and in vLLM's words."""

from typing import Any

import msgspec

from inlay.core.errors import StructureError
from inlay.core.messages import Structure
from inlay.serve.openai.protocol import GenerationBody


def find_structure(body: GenerationBody) -> Structure | None:
    """The grammar in `response_format`, `structured_outputs` or a `guided_*` field, if any.

    Raises:
        StructureError: more than one is given, or one is not of its form. Whether a schema or
            regex compiles is the engine's to say.
    """
    found = [
        (name, structure)
        for name, structure in (
            ("response_format", _response_format(body.response_format)),
            ("guided_json", _guided_json(body.guided_json)),
            ("guided_regex", _text("regex", body.guided_regex)),
            ("guided_choice", _choices("guided_choice", body.guided_choice)),
            ("guided_grammar", _text("lark", body.guided_grammar)),
            ("structured_outputs", _structured_outputs(body.structured_outputs)),
        )
        if structure is not None
    ]
    if len(found) > 1:
        names = ", ".join(name for name, _ in found)
        raise StructureError(f"{names} are given together: use one of them", param=found[1][0])
    return found[0][1] if found else None


def json_schema(schema: object) -> Structure:
    """The structure for a schema given as an object."""
    return Structure("json_schema", msgspec.json.encode(schema).decode())


def _response_format(value: dict[str, Any] | None) -> Structure | None:
    if value is None:
        return None
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure("json_object")
    if kind != "json_schema":
        raise StructureError(
            f"response_format.type is {kind!r}: it must be 'text', 'json_object' or 'json_schema'",
            param="response_format",
        )
    described = value.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise StructureError(
            "response_format.json_schema.schema is missing: it must be a JSON schema (an object)",
            param="response_format",
        )
    return json_schema(schema)


def _guided_json(value: dict[str, Any] | str | bool | None) -> Structure | None:
    if value is None or value is False:
        return None
    if value is True:
        return Structure("json_object")
    return Structure("json_schema", value) if isinstance(value, str) else json_schema(value)


def _text(kind: str, value: object, name: str | None = None) -> Structure | None:
    if value is None:
        return None
    name = name or {"regex": "guided_regex", "lark": "guided_grammar"}[kind]
    if not isinstance(value, str) or not value:
        raise StructureError(f"{name} must be a text that is not empty", param=name)
    return Structure("regex" if kind == "regex" else "lark", value)


def _choices(name: str, value: object) -> Structure | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise StructureError(f"{name} must be a list of one or more texts", param=name)
    return Structure("choice", msgspec.json.encode(value).decode())


def _structured_outputs(value: dict[str, Any] | None) -> Structure | None:
    given = {name: v for name, v in (value or {}).items() if v is not None and v is not False}
    parts: list[Structure | None] = []
    if "json" in given:
        if not isinstance(given["json"], dict | str):
            raise StructureError(
                "structured_outputs.json must be a JSON schema", param="structured_outputs"
            )
        parts.append(_guided_json(given["json"]))
    if "json_object" in given:
        parts.append(Structure("json_object"))
    parts.append(_text("regex", given.get("regex"), "structured_outputs.regex"))
    parts.append(_text("lark", given.get("grammar"), "structured_outputs.grammar"))
    parts.append(_choices("structured_outputs.choice", given.get("choice")))
    found = [part for part in parts if part is not None]
    if len(found) > 1:
        raise StructureError(
            "structured_outputs names several grammars: use one", param="structured_outputs"
        )
    if not found and "structural_tag" in given:
        raise StructureError(
            "structured_outputs.structural_tag is not supported: use json, regex or choice",
            param="structured_outputs",
        )
    return found[0] if found else None
