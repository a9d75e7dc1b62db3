"""Which notation a model writes in, and what of it depends on its chat template."""

from dataclasses import dataclass

from inlay.serve.parsers.base import OutputParser, PlainParser, ReaderOptions
from inlay.serve.parsers.notations import NOTATIONS, Notation, choose_notation


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A model's notation.

    Attributes:
        notation: the family's.
        thinks: the notation has a thinking section.
        switchable: the template turns thinking off by `enable_thinking=False`.
        developer_role: the template knows the role `developer`.
    """

    notation: Notation
    thinks: bool = False
    switchable: bool = False
    developer_role: bool = False

    def parser(self, options: ReaderOptions) -> OutputParser:
        """A reader for one choice."""
        return self.notation.parser(options) if self._read(options.tools) else PlainParser()

    def wants_special_tokens(self, tools: bool) -> bool:
        """Whether the notation's marker tokens are left out of the text unless asked for."""
        kept = self.notation.special_tokens
        return self._read(tools) and (kept == "all" or (kept == "tools" and tools))

    def starts_thinking(self, prompt: str) -> bool:
        """Whether the prompt ends inside the model's thinking."""
        return self.thinks and prompt.rstrip().endswith(self.notation.think_start.rstrip())

    def answer_prefix(self, prompt: str) -> str:
        """What to add to a prompt so that the answer itself is written next.

        Output that must follow a grammar from its first token has no place for thinking or for a
        message header.
        """
        if self.starts_thinking(prompt):
            return f"\n{self.notation.think_end}\n\n"
        return self.notation.answer_opening

    def _read(self, tools: bool) -> bool:
        """Whether the output holds anything but content."""
        return tools or self.thinks


def choose_dialect(template: str | None, tool_parser: str | None = None) -> Dialect:
    """Recognise the notation by the chat template's text.

    Args:
        template: the chat template.
        tool_parser: the name of a notation to use instead, one of `NOTATIONS`.
    """
    text = template or ""
    notation = choose_notation(text) if tool_parser is None else NOTATIONS[tool_parser]
    return Dialect(
        notation=notation,
        thinks=notation.thinks or notation.think_end in text or "reasoning_content" in text,
        switchable="enable_thinking" in text,
        developer_role="developer" in text,
    )
