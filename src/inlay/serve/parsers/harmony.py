"""gpt-oss: the harmony notation, a sequence of messages with channels and recipients."""

import re

from inlay.serve.parsers.base import MarkerParser, ReaderOptions

_START = "<|start|>"
_CHANNEL = "<|channel|>"
_CONSTRAIN = "<|constrain|>"
_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyParser(MarkerParser):
    """Channel `analysis` is thinking, messages to a function are calls, all else is content.

    The prompt ends with `<|start|>assistant`, so the output begins inside a header. Output
    without any message is passed on as content when it ends.
    """

    think_start = think_end = _START
    tool_markers = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)

    def __init__(self, options: ReaderOptions) -> None:
        # The markers frame every output, with tools or without.
        super().__init__(
            ReaderOptions(tools=True, parallel=options.parallel, tool_names=options.tool_names)
        )
        self._in_body = False
        self._header = ""
        self._kind = ""
        self._gap = {"reasoning": False, "content": False}
        self._spoken = False
        self._has_arguments = False

    def _take_marker(self, marker: str) -> None:
        self._marker(marker)

    def _marker(self, marker: str) -> None:
        if marker == _MESSAGE and not self._in_body:
            self._open()
        elif marker in (_CHANNEL, _CONSTRAIN) and not self._in_body:
            self._header += marker
        elif marker == _START or marker in _ENDS:
            self._close()

    def _open(self) -> None:
        self._in_body = self._spoken = True
        self._has_arguments = False
        _, _, after = self._header.partition(_CHANNEL)
        channel = after.split("<|", 1)[0].split()[:1]
        self._kind = "reasoning" if channel == ["analysis"] else "content"
        name = self._called()
        if name is not None:
            self._kind = "call" if self._call(name) else "dropped"

    def _called(self) -> str | None:
        """The function that the message is for, None where it is for nobody or a built-in tool.

        The model knows tools of its own, `python` and `browser`, whose messages are no JSON.
        """
        recipient = _RECIPIENT.search(self._header)
        if recipient is None or not self._options.tool_names:
            return None
        name = recipient[1].removeprefix("functions.")
        is_code = self._header.replace(_CONSTRAIN, " ").split()[-1] == "code"
        offered = name in self._options.tool_names and not is_code
        return name if offered or name != recipient[1] else None

    def _close(self) -> None:
        if self._in_body and self._kind == "call" and not self._has_arguments:
            self._arguments("{}")
        if self._kind in self._gap and self._in_body:
            self._gap[self._kind] = True
        self._in_body, self._header, self._kind = False, "", ""

    def _text(self, text: str) -> None:
        if not self._in_body:
            self._header += text
        elif self._kind == "reasoning":
            self._pieces_of("reasoning", self._reasoning.push(text))
        elif self._kind == "content":
            self._pieces_of("content", self._content.push(text))
        elif self._kind == "call":
            self._has_arguments |= bool(text.strip())
            self._arguments(text)

    def _pieces_of(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._gap[kind]:
            self._gap[kind] = False
            text = "\n\n" + text.lstrip()
        if kind == "content":
            self._add_content(text)
        else:
            self._add_reasoning(text)

    def _end(self) -> None:
        if not self._spoken and self._header:
            self._add_content(self._header)
        self._close()
