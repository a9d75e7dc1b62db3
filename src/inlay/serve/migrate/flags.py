"""Reads the flags of a command by a program's table."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from inlay.core.errors import ConfigError
from inlay.serve.migrate.program import Program
from inlay.serve.migrate.rows import Aside, Fate, Finding, Row, Takes
from inlay.serve.migrate.values import is_switch_word

_NUMBER = re.compile(r"-\.?\d")
_POSITIONAL = -1  # the row of the first word that is no flag
_DASHES = str.maketrans({"\u2013": "--", "\u2014": "--", "\u2212": "-"})


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A value that a flag asks for.

    Attributes:
        target: see `Row`.
        flag: as it was written.
        rank: of its row in the table; of two for one target the lower one counts.
    """

    target: str
    value: str
    flag: str
    rank: int
    reason: str


@dataclass
class Asked:
    """What a command asks for, and the flags that put nothing on the line."""

    asks: list[Ask] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


class FlagReader:
    """Collects what the words and variables of one command ask for."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._exact: dict[str, int] = {}
        self._patterns: list[tuple[str, int]] = []
        for rank, row in enumerate(program.rows):
            for spelling in row.spellings:
                if "*" in spelling:
                    self._patterns.append((spelling, rank))
                else:
                    self._exact.setdefault(spelling, rank)
        self._asked = Asked()

    def read(self, words: Sequence[str], variables: Mapping[str, str]) -> Asked:
        """Read a command.

        Args:
            words: behind the program's name.
            variables: set in front of it.

        Raises:
            ConfigError: a flag lacks its value, or has an impossible one.
        """
        for name, value in variables.items():
            self._take_variable(name, value)
        last: dict[int, tuple[str, tuple[str, ...]]] = {}
        for flag, rank, values in self._split(words):
            if rank is None:
                self._unknown(flag, values)
            elif rank >= 0 and self._program.rows[rank].fate is not Fate.LINE:
                self._take(rank, flag, values)
            else:
                if rank in last:
                    again = f"the last {flag or 'of these'} counts"
                    self._find(_written(*last[rank]), Fate.NEEDLESS, again)
                last[rank] = (flag, values)
        for rank, (flag, values) in last.items():
            self._take(rank, flag, values)
        return self._asked

    def _split(self, words: Sequence[str]) -> Iterator[tuple[str, int | None, tuple[str, ...]]]:
        """Flags with the numbers of their rows and their values; words that are no flags."""
        left = list(words)
        positionals = 0
        while left:
            word = left.pop(0)
            if word == "--":
                continue
            if not self._is_flag(word):
                positionals += 1
                taken = positionals == 1 and self._program.positional
                yield ("", _POSITIONAL if taken else None, (word,))
                continue
            flag, equals, value = word.partition("=")
            flag, rank = self._find_row(flag)
            if rank is None:
                count = self._free(left)
                values = (value,) if equals else tuple(left[:count])
                del left[: 0 if equals else count]
                yield (flag, None, values)
                continue
            row = self._program.rows[rank]
            if equals:
                yield (flag, rank, (value,))
                continue
            count = self._values(row, left)
            if not count and row.takes in (Takes.ONE, Takes.MANY):
                raise ConfigError(f"{flag} needs a value")
            yield (flag, rank, tuple(left[:count]))
            del left[:count]

    def _values(self, row: Row, left: Sequence[str]) -> int:
        """How many words behind a flag are its values."""
        free = self._free(left)
        if row.takes in (Takes.SWITCH, Takes.MAYBE):
            digits = row.takes is Takes.MAYBE
            return int(free > 0 and is_switch_word(left[0], digits=digits))
        return min(free, 1) if row.takes is Takes.ONE else free

    def _free(self, words: Sequence[str]) -> int:
        """How many of the first words are no flags."""
        flags = (count for count, word in enumerate(words) if self._is_flag(word))
        return next(flags, len(words))

    def _is_flag(self, word: str) -> bool:
        return word.translate(_DASHES).startswith("-") and len(word) > 1 and not _NUMBER.match(word)

    def _find_row(self, flag: str) -> tuple[str, int | None]:
        """A flag as it is spelled in the table, and the number of its row."""
        flag = flag.translate(_DASHES)
        if flag.startswith("--"):
            flag = flag.replace("_", "-")
        for spelling in (flag, flag.partition(".")[0], flag.removeprefix("-")):
            if spelling in self._exact and spelling.startswith("-"):
                return (flag, self._exact[spelling])
            for pattern, rank in self._patterns:
                if fnmatchcase(spelling, pattern):
                    return (flag, rank)
        return (flag, None)

    def _take_variable(self, name: str, value: str) -> None:
        spelling = f"{name}="
        rank = self._exact.get(spelling)
        if rank is None:
            matches = (r for pattern, r in self._patterns if fnmatchcase(spelling, pattern))
            rank = next(matches, None)
        if rank is None:
            self._find(spelling + value, Fate.UNKNOWN, "a variable that this table does not have")
            return
        self._take(rank, spelling, (value,))

    def _take(self, rank: int, flag: str, values: tuple[str, ...]) -> None:
        """Record what one flag or variable asks for."""
        written = _written(flag, values)
        if rank == _POSITIONAL:
            target = self._program.positional
            self._ask((target,), values[0], written, rank, "a directory, or a name on the hub")
            return
        row = self._program.rows[rank]
        value = ",".join(values) if row.takes is Takes.MANY else " ".join(values)
        try:
            converted = row.convert(value)
        except ValueError as error:
            hint = " (the shell's variables are not known here)" if "$" in value else ""
            raise ConfigError(f"{written}: must be {error}{hint}") from None
        targets = row.targets
        if isinstance(converted, Aside):
            self._find(written, converted.fate, converted.reason)
            targets = (converted.target,) if converted.target else ()
            converted = value if converted.value is None else converted.value
        elif row.fate is not Fate.LINE:
            self._find(written, row.fate, row.reason)
        if flag.endswith("="):  # a flag counts for more than a variable
            rank += len(self._program.rows)
            targets = tuple(f"env:{flag[:-1]}" if one == "env" else one for one in targets)
        self._ask(targets, converted, written, rank, row.reason)

    def _ask(self, targets: tuple[str, ...], value: str, flag: str, rank: int, reason: str) -> None:
        self._asked.asks += [
            Ask(target=target, value=value, flag=flag, rank=rank, reason=reason)
            for target in targets
        ]

    def _unknown(self, flag: str, values: tuple[str, ...]) -> None:
        known = f"a flag that this table of {self._program.name} does not have"
        self._find(_written(flag, values), Fate.UNKNOWN, known if flag else "a word of its own")

    def _find(self, flag: str, fate: Fate, reason: str) -> None:
        self._asked.findings.append(Finding(flag=flag, fate=fate, reason=reason))


def _written(flag: str, values: Sequence[str]) -> str:
    """A flag and its values as one text."""
    if flag.endswith("="):
        return flag + " ".join(values)
    return " ".join((flag, *values)).strip()
