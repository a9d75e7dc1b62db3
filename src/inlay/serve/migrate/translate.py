"""From a command, as text or as words, to the line of `inlay serve` with all reasons."""

from collections.abc import Sequence
from dataclasses import dataclass

from inlay.core.errors import ConfigError
from inlay.serve.migrate.flags import FlagReader
from inlay.serve.migrate.line import ServeLine, make_line
from inlay.serve.migrate.program import Program
from inlay.serve.migrate.programs import find_program, known_starts, program_of_image
from inlay.serve.migrate.rows import Fate, Finding
from inlay.serve.migrate.shell import Command, split_text, take_apart


@dataclass(frozen=True, kw_only=True)
class Migration:
    """A translated command.

    Attributes:
        program: whose command it was.
        line: to be typed instead.
        literal: `$` in its words stands for itself.
        findings: what became of every flag, those on the line first.
    """

    program: Program
    line: ServeLine
    literal: bool
    findings: tuple[Finding, ...]


def translate(words: Sequence[str]) -> Migration:
    """Translate a command.

    Args:
        words: one text with the whole command, or its words as a shell has split them.

    Raises:
        ConfigError: it starts no program that is known, or a flag's value is missing or wrong.
    """
    literal = len(words) > 1
    commands = [list(words)] if literal else split_text(words[0] if words else "")
    variables: dict[str, str] = {}
    others: list[Finding] = []
    for parts in commands:
        command = take_apart(parts)
        variables |= command.variables
        found = _find(command)
        if found is not None:
            command.variables = variables
            return _translate(command, *found, others, literal)
        if command.words:
            reason = "another command: it is not part of the line"
            others.append(Finding(flag=" ".join(parts), fate=Fate.ELSEWHERE, reason=reason))
    what = others[0].flag if others else "the command"
    raise ConfigError(
        f"{what[:60]!r} starts no program that inlay migrate knows; it knows {known_starts()}"
    )


def _find(command: Command) -> tuple[Program, list[str]] | None:
    found = find_program(command.words)
    if found is None and command.container is not None:
        program = program_of_image(command.container.image)
        if program is not None:
            return program, command.words
    return found


def _translate(
    command: Command, program: Program, words: list[str], others: list[Finding], literal: bool
) -> Migration:
    asked = FlagReader(program).read(words, command.variables)
    line, findings = make_line(asked, program, command.container, command.before)
    findings += _around(command)
    order = list(Fate)
    findings = sorted([*findings, *others], key=lambda finding: order.index(finding.fate))
    return Migration(program=program, line=line, literal=literal, findings=tuple(findings))


def _around(command: Command) -> list[Finding]:
    """What became of the words around the program's own."""
    found = []
    if command.before:
        words = " ".join(command.before)
        reason = "Inlay goes by the processors and nodes that this leaves"
        found.append(Finding(flag=words, fate=Fate.LINE, becomes=(words,), reason=reason))
    if command.dropped:
        reason = "started the program; put it in front of the line again where it is of use"
        found.append(Finding(flag=" ".join(command.dropped), fate=Fate.ELSEWHERE, reason=reason))
    if command.container is not None:
        reason = "the line runs on the machine itself, at its ports and with its paths"
        words = " ".join((*command.container.options, command.container.image))
        found.append(Finding(flag=words, fate=Fate.ELSEWHERE, reason=reason))
    return found
