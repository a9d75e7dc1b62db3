"""Which notation a model writes in, chosen from the text of its chat template."""

import re
from dataclasses import dataclass

from inlay.serve.parsers.base import MarkerParser, OutputParser, PlainParser, ReaderOptions
from inlay.serve.parsers.harmony import HarmonyParser
from inlay.serve.parsers.headed import DeepSeekParser, KimiParser
from inlay.serve.parsers.hermes import HermesParser
from inlay.serve.parsers.llama import LlamaParser
from inlay.serve.parsers.qwen_coder import QwenCoderParser

_TOOLS = re.compile(r"\btools\b")
_ARGUMENTS_AS_JSON = re.compile(r"arguments\b[^{}]{0,40}\|\s*(tojson|items|dictsort)")
_THINK = "<think>"
_THINK_END = "</think>"


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A model family's notation.

    Attributes:
        name: `hermes`, `qwen_coder`, `deepseek`, `kimi`, `harmony`, `llama` or `plain`.
        takes_tools: the chat template shows tools to the model.
        thinks: the notation has a thinking section.
        switchable: the template turns thinking off by `enable_thinking=False`.
        arguments_as_json: the template wants arguments of earlier calls as objects, not as text.
        developer_role: the template knows the role `developer`.
    """

    name: str
    takes_tools: bool = False
    thinks: bool = False
    switchable: bool = False
    arguments_as_json: bool = True
    developer_role: bool = False

    def parser(self, options: ReaderOptions) -> OutputParser:
        """A reader for one choice."""
        parsers: dict[str, type[MarkerParser]] = {
            "hermes": HermesParser,
            "qwen_coder": QwenCoderParser,
            "deepseek": DeepSeekParser,
            "kimi": KimiParser,
            "harmony": HarmonyParser,
        }
        if self.name == "llama":
            return LlamaParser(options) if options.tools else PlainParser()
        if self.name == "plain" or not (self.thinks or options.tools or self.name == "harmony"):
            return PlainParser()
        return parsers[self.name](options)

    def wants_special_tokens(self, tools: bool) -> bool:
        """Whether the notation's marker tokens are left out of the text unless asked for."""
        return self.name == "harmony" or (tools and self.name in ("deepseek", "kimi", "llama"))

    def starts_thinking(self, prompt: str) -> bool:
        """Whether the prompt ends inside the model's thinking."""
        return self.thinks and self.name != "harmony" and prompt.rstrip().endswith(_THINK)

    def answer_prefix(self, prompt: str) -> str:
        """What to add to a prompt so that the answer itself is written next.

        Output that must follow a grammar from its first token has no place for thinking or for a
        message header.
        """
        if self.name == "harmony":
            return "<|channel|>final<|message|>"
        if self.starts_thinking(prompt):
            return f"\n{_THINK_END}\n\n"
        return ""


def choose_dialect(template: str | None) -> Dialect:
    """Recognise the notation by the markers that the chat template writes itself."""
    text = template or ""
    takes_tools = _TOOLS.search(text) is not None
    thinks = _THINK_END in text or "reasoning_content" in text
    if "<|channel|>" in text:
        name, thinks = "harmony", True
    elif "<｜tool▁call" in text or "<｜Assistant｜>" in text:
        name, thinks = "deepseek", True
    elif "<|tool_calls_section_begin|>" in text or "<|tool_call_begin|>" in text:
        name = "kimi"
    elif "<function=" in text and "<parameter=" in text:
        name = "qwen_coder"
    elif "<tool_call>" in text or thinks:
        name = "hermes"
    elif takes_tools and ("<|python_tag|>" in text or '"parameters"' in text):
        name = "llama"
    else:
        # Tools are shown to the model, but in a notation we do not know: read the common one.
        name = "hermes" if takes_tools else "plain"
    return Dialect(
        name=name,
        takes_tools=takes_tools,
        thinks=thinks,
        switchable="enable_thinking" in text,
        arguments_as_json=_ARGUMENTS_AS_JSON.search(text) is not None,
        developer_role="developer" in text,
    )
