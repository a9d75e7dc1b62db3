"""A program whose launch commands are translated."""

from dataclasses import dataclass

from inlay.serve.migrate.rows import Row


@dataclass(frozen=True, kw_only=True)
class Implied:
    """What a program does unless told, and Inlay does only when told.

    Attributes:
        target: as a row's; nothing changes where the command asks for something of it.
        when: a target that the command must ask for; empty for always.
    """

    target: str
    value: str
    reason: str
    when: str = ""


def listens(port: int) -> Implied:
    """The port of a program: its clients go on asking there."""
    return Implied(target="--port", value=str(port), reason="the program's own unless told")


@dataclass(frozen=True, kw_only=True)
class Program:
    """One program and its table.

    Attributes:
        name: for people.
        starts: how its commands begin, `*` standing for any letters: the program and its
            subcommand, `-m MODULE` of Python, or the end of a script's path.
        images: container images that run it, matched the same way.
        rows: its flags; where two are for one thing, the first in this order counts.
        implied: what it does unless told.
        positional: what a word becomes that is no flag: as a row's target.
        note: a sentence for people about the whole.
    """

    name: str
    starts: tuple[str, ...]
    rows: tuple[Row, ...]
    implied: tuple[Implied, ...] = ()
    images: tuple[str, ...] = ()
    positional: str = ""
    note: str = ""
