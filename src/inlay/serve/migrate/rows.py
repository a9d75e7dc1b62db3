"""A row of a program's table: one flag, what it becomes, and why."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum

PARTED = "\n"
"""Between the parts of a value that is written once for each of them: paths have commas."""


class Fate(StrEnum):
    """What happens to a flag."""

    LINE = "line"
    """It is on the line."""
    NEEDLESS = "needless"
    """Inlay needs no such flag."""
    ELSEWHERE = "elsewhere"
    """It is said in another place: in requests, in the model's files, before the server."""
    NOT_YET = "not yet"
    """Inlay cannot do it so far."""
    UNKNOWN = "unknown"
    """No row has it."""


class Takes(Enum):
    """How many values follow a flag."""

    SWITCH = "none, or a word such as on and off"
    MAYBE = "one or none"
    ONE = "one"
    MANY = "one or more"


@dataclass(frozen=True)
class Aside:
    """What becomes of a flag that, with this value, puts nothing on the line.

    Attributes:
        target: takes a value nevertheless; see `Row`.
        value: that value, where it is not the flag's.
    """

    fate: Fate
    reason: str
    target: str = ""
    value: str | None = None


Convert = Callable[[str], str | Aside]
"""A flag's value to that of its targets. Raises ValueError with what it must be."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One flag of one program.

    Attributes:
        spellings: as people write it; `NAME=` is an environment variable, `*` stands for any
            letters.
        takes: what follows it.
        fate: with an ordinary value.
        targets: what takes its value: MODEL, an option of `inlay serve`, the path of a setting,
            `env` for a variable that is kept, or a quantity (`#name`), of which `choices` makes
            these.
        convert: the value for them.
        reason: for people.
    """

    spellings: tuple[str, ...]
    takes: Takes
    fate: Fate
    targets: tuple[str, ...]
    convert: Convert
    reason: str


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What happened to one flag of a command.

    Attributes:
        flag: as it was written, with its value; empty for what follows from others.
        becomes: its parts on the line.
    """

    flag: str
    fate: Fate
    becomes: tuple[str, ...] = ()
    reason: str


def as_is(value: str) -> str:
    """The value."""
    return value


def to(usage: str, target: str | tuple[str, ...], reason: str, convert: Convert = as_is) -> Row:
    """A flag that becomes something on the line.

    Args:
        usage: its spellings and then what follows it: nothing, `NAME`, `[NAME]`, or `NAME...`.
    """
    targets = (target,) if isinstance(target, str) else target
    return _row(usage, Fate.LINE, reason, targets, convert)


def needless(usage: str, reason: str, target: str = "") -> Row:
    """A flag that Inlay needs not; see `Aside` for `target`."""
    return _row(usage, Fate.NEEDLESS, reason, (target,) if target else ())


def elsewhere(usage: str, reason: str) -> Row:
    """A flag whose meaning has another place."""
    return _row(usage, Fate.ELSEWHERE, reason)


def not_yet(
    usage: str, reason: str, unless: Mapping[str, str] | None = None, target: str = ""
) -> Row:
    """A flag for what Inlay cannot do; the reason says what it does instead.

    Args:
        unless: values that ask for nothing that Inlay lacks, and why.
        target: see `Aside`.
    """

    def convert(value: str) -> str | Aside:
        reason = (unless or {}).get(value)
        return value if reason is None else Aside(Fate.NEEDLESS, reason)

    return _row(usage, Fate.NOT_YET, reason, (target,) if target else (), convert)


def _row(
    usage: str,
    fate: Fate,
    reason: str,
    targets: tuple[str, ...] = (),
    convert: Convert = as_is,
) -> Row:
    words = usage.split()
    spellings = tuple(word for word in words if word.startswith("-") or word.endswith("="))
    (value,) = words[len(spellings) :] or ("",)
    if not value:
        takes = Takes.SWITCH
    elif value.startswith("["):
        takes = Takes.MAYBE
    else:
        takes = Takes.MANY if value.endswith("...") else Takes.ONE
    return Row(
        spellings=spellings,
        takes=takes,
        fate=fate,
        targets=targets,
        convert=convert,
        reason=reason,
    )
