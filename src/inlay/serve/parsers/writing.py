"""How calls and their results are written out where a chat template has no place for them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def _as_json(value: object) -> str:
    """Spaced as chat templates space it."""
    return json.dumps(value, ensure_ascii=False)


def _json_call(name: str, arguments: object) -> str:
    return f'{{"name": {_as_json(name)}, "arguments": {_as_json(arguments)}}}'


def _llama_call(name: str, arguments: object) -> str:
    return f'{{"name": {_as_json(name)}, "parameters": {_as_json(arguments)}}}'


def _python_call(name: str, arguments: object) -> str:
    if not isinstance(arguments, Mapping):
        return f"{name}({arguments!r})"
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _fenced_call(name: str, arguments: object) -> str:
    return (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_as_json(arguments)}\n```"
        "<｜tool▁call▁end｜>"
    )


def _headed_call(name: str, arguments: object) -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_as_json(arguments)}<｜tool▁call▁end｜>"


@dataclass(frozen=True, kw_only=True)
class Writing:
    """One notation's way.

    Attributes:
        call: writes one call, from its name and its arguments.
        before, between, after: what stands around the calls of a message.
    """

    call: Callable[[str, Any], str]
    before: str = ""
    between: str = "\n"
    after: str = ""

    def calls(self, calls: Sequence[tuple[str, object]]) -> str:
        """The calls of one message, each a name and its arguments."""
        return self.before + self.between.join(self.call(*call) for call in calls) + self.after


def _listed(before: str, after: str = "") -> Writing:
    return Writing(call=_json_call, before=f"{before}[", between=", ", after=f"]{after}")


HERMES = Writing(
    call=_json_call,
    before="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    after="\n</tool_call>",
)
DEEPSEEK_V3 = Writing(
    call=_fenced_call, before="<｜tool▁calls▁begin｜>", after="<｜tool▁calls▁end｜>"
)
DEEPSEEK_V31 = Writing(
    call=_headed_call, before="<｜tool▁calls▁begin｜>", between="", after="<｜tool▁calls▁end｜>"
)
LLAMA = Writing(call=_llama_call, between="; ")
MISTRAL = _listed("[TOOL_CALLS]")
LFM2 = Writing(
    call=_python_call, before="<|tool_call_start|>[", between=", ", after="]<|tool_call_end|>"
)
GRANITE = _listed("<|tool_call|>")
NEMOTRON = _listed("<TOOLCALL>", "</TOOLCALL>")
HUNYUAN_LIST = _listed("<tool_calls>", "</tool_calls>")
