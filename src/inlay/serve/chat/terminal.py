"""Reading messages from a terminal or a pipe, and writing answers."""

import sys
from typing import TextIO

_FENCE = '"""'
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"


class Terminal:
    """Standard input and output. On a terminal with prompts and line editing, else without."""

    def __init__(self, stdin: TextIO | None = None, stdout: TextIO | None = None) -> None:
        self._in = stdin or sys.stdin
        self._out = stdout or sys.stdout
        self.interactive = self._in.isatty() and self._out.isatty()
        self._dim = False
        if self.interactive:
            import readline  # noqa: F401 - gives input() editing and history

    def read_message(self) -> str | None:
        """The next message, which may span lines; None at the end of the input.

        Lines between two triple quotes are one message; so are lines that end with a backslash.
        """
        line = self._read_line(">>> ")
        if line is None:
            return None
        if line.lstrip().startswith(_FENCE):
            return self._read_fenced(line.lstrip()[len(_FENCE) :])
        lines = []
        while line is not None and line.endswith("\\"):
            lines.append(line[:-1])
            line = self._read_line("... ")
        return "\n".join([*lines, line or ""]).strip()

    def _read_fenced(self, first: str) -> str:
        lines, line = [], first
        while not line.rstrip().endswith(_FENCE):
            lines.append(line)
            following = self._read_line("... ")
            if following is None:
                return "\n".join(lines).strip()
            line = following
        return "\n".join([*lines, line.rstrip()[: -len(_FENCE)]]).strip()

    def _read_line(self, prompt: str) -> str | None:
        if self.interactive:
            try:
                return input(prompt)
            except EOFError:
                print(file=self._out)
                return None
        line = self._in.readline()
        return line.rstrip("\r\n") if line else None

    def write_answer(self, text: str, *, dim: bool = False) -> None:
        """Write a piece of an answer at once; thinking is dim where that can be shown."""
        if dim != self._dim and self.interactive:
            self._out.write(_DIM if dim else _PLAIN)
        self._dim = dim
        self._out.write(printable(text))
        self._out.flush()

    def end_answer(self) -> None:
        """Finish the line of an answer."""
        if self._dim and self.interactive:
            self._out.write(_PLAIN)
        self._dim = False
        self._out.write("\n")
        self._out.flush()

    def write_lines(self, lines: list[str] | tuple[str, ...]) -> None:
        """Write lines of our own, dim on a terminal."""
        for line in lines:
            text = printable(line)
            self._out.write(f"{_DIM}{text}{_PLAIN}\n" if self.interactive else f"{text}\n")
        self._out.flush()


def printable(text: str) -> str:
    """Text without control characters, so that no answer can command the terminal."""
    return "".join(
        char for char in text if char in "\n\t" or not (ord(char) < 32 or 127 <= ord(char) < 160)
    )
