"""The table of notations: by what each is recognised in a chat template, and who reads it."""

from dataclasses import dataclass
from typing import Literal

from inlay.core.errors import ConfigError
from inlay.core.near_names import did_you_mean
from inlay.serve.parsers import writing
from inlay.serve.parsers.arg_keys import GlmParser, HunyuanParser
from inlay.serve.parsers.base import MarkerParser
from inlay.serve.parsers.gemma import FunctionGemmaParser, GemmaParser
from inlay.serve.parsers.harmony import HarmonyParser
from inlay.serve.parsers.headed import DeepSeekParser, KimiParser
from inlay.serve.parsers.lfm2 import Lfm2Parser
from inlay.serve.parsers.llama import LlamaParser
from inlay.serve.parsers.mistral import MistralParser
from inlay.serve.parsers.named_tags import DsmlParser, MiniMaxParser, QwenCoderParser
from inlay.serve.parsers.tagged_json import (
    GraniteParser,
    HermesParser,
    HunyuanListParser,
    NemotronParser,
)
from inlay.serve.parsers.writing import Writing


@dataclass(frozen=True, kw_only=True)
class Notation:
    """How a family of models writes thinking and tool calls.

    Attributes:
        name: as `tool_parser` has it.
        parser: the class that reads it.
        marks: groups of texts; a template that has all texts of one group writes so.
        special_tokens: when the notation's markers may be special tokens, which are left out of
            the text unless asked for: `tools` calls only, `all` the thinking too.
        thinks: the models think whether or not their template says so.
        answer_opening: what opens an answer, for output that must begin with it.
        writing: how calls are written out where a template has no place for them; None where the
            family's templates have one.
    """

    name: str
    parser: type[MarkerParser] | type[LlamaParser]
    marks: tuple[tuple[str, ...], ...]
    special_tokens: Literal["none", "tools", "all"] = "none"
    thinks: bool = False
    answer_opening: str = ""
    writing: Writing | None = None

    @property
    def think_start(self) -> str:
        """What opens a thought."""
        return self._markers.think_start

    @property
    def think_end(self) -> str:
        """What closes a thought."""
        return self._markers.think_end

    @property
    def _markers(self) -> type[MarkerParser]:
        return self.parser if issubclass(self.parser, MarkerParser) else MarkerParser


_HERMES = Notation(
    name="hermes",
    parser=HermesParser,
    marks=(("<tool_call>",), ("</think>",), ("reasoning_content",)),
    writing=writing.HERMES,
)
_ROWS = (
    Notation(
        name="harmony",
        parser=HarmonyParser,
        marks=(("<|channel|>",),),
        special_tokens="all",
        thinks=True,
        answer_opening="<|channel|>final<|message|>",
    ),
    Notation(
        name="deepseek_v32",
        parser=DsmlParser,
        marks=(("｜DSML｜",),),
        special_tokens="tools",
        thinks=True,
    ),
    Notation(
        name="deepseek",
        parser=DeepSeekParser,
        marks=(("<｜tool▁call", "```json"),),
        special_tokens="tools",
        thinks=True,
        writing=writing.DEEPSEEK_V3,
    ),
    Notation(
        name="deepseek_v31",
        parser=DeepSeekParser,
        marks=(("<｜tool▁call",), ("<｜Assistant｜>",)),
        special_tokens="tools",
        thinks=True,
        writing=writing.DEEPSEEK_V31,
    ),
    Notation(
        name="kimi",
        parser=KimiParser,
        marks=(("<|tool_calls_section_begin|>",), ("<|tool_call_begin|>",)),
        special_tokens="tools",
    ),
    Notation(
        name="mistral",
        parser=MistralParser,
        marks=(("[TOOL_CALLS]",), ("[/THINK]",)),
        special_tokens="all",
        writing=writing.MISTRAL,
    ),
    Notation(
        name="minimax_m2",
        parser=MiniMaxParser,
        marks=(("<minimax:tool_call>",),),
        special_tokens="tools",
    ),
    Notation(
        name="gemma",
        parser=GemmaParser,
        marks=(("<|tool_call>call:",),),
        special_tokens="all",
    ),
    Notation(
        name="function_gemma",
        parser=FunctionGemmaParser,
        marks=(("<start_function_call>",),),
        special_tokens="tools",
    ),
    Notation(
        name="lfm2",
        parser=Lfm2Parser,
        marks=(("<|tool_call_start|>",), ("<|tool_list_start|>",), ("List of tools: [",)),
        special_tokens="tools",
        writing=writing.LFM2,
    ),
    Notation(
        name="nemotron",
        parser=NemotronParser,
        marks=(("<TOOLCALL>",),),
        special_tokens="tools",
        writing=writing.NEMOTRON,
    ),
    Notation(
        name="hunyuan",
        parser=HunyuanParser,
        marks=(("<arg_key{}>", ":opensource"), ("<arg_key:opensource>",)),
        special_tokens="all",
    ),
    Notation(
        name="hunyuan_a13b",
        parser=HunyuanListParser,
        marks=(("<tool_calls>",),),
        writing=writing.HUNYUAN_LIST,
    ),
    Notation(
        name="granite",
        parser=GraniteParser,
        marks=(("<|tool_call|>",),),
        special_tokens="tools",
        writing=writing.GRANITE,
    ),
    Notation(
        name="glm",
        parser=GlmParser,
        marks=(("<arg_key>",),),
        special_tokens="tools",
    ),
    Notation(name="qwen_coder", parser=QwenCoderParser, marks=(("<function=", "<parameter="),)),
    _HERMES,
    Notation(
        name="llama",
        parser=LlamaParser,
        marks=(("<|python_tag|>",), ('"parameters"',)),
        special_tokens="tools",
        writing=writing.LLAMA,
    ),
)
NOTATIONS = {row.name: row for row in _ROWS}


def check_tool_parser(name: str) -> None:
    """Raise ConfigError if there is no notation of this name."""
    if name not in NOTATIONS:
        near = did_you_mean(name, NOTATIONS)
        raise ConfigError(
            f"tool_parser is {name!r}: it must be one of {', '.join(sorted(NOTATIONS))}"
            + (f"; {near}" if near else "")
        )


def choose_notation(template: str) -> Notation:
    """Recognise a notation by what the chat template writes itself; the common one if by none."""
    for row in _ROWS:
        if any(all(mark in template for mark in group) for group in row.marks):
            return row
    return _HERMES
