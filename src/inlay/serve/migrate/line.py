"""Makes the line of `inlay serve` from what a command asks for."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inlay.serve.migrate.choices import (
    choose_model,
    fit_device,
    fit_ranks,
    fit_sizes,
    imply,
    leave_container,
)
from inlay.serve.migrate.flags import Asked
from inlay.serve.migrate.model_name import MODEL
from inlay.serve.migrate.plan import ENV, OPTIONS, REPEATED, Plan
from inlay.serve.migrate.program import Program
from inlay.serve.migrate.rows import PARTED, Finding
from inlay.serve.migrate.shell import Container

_EXPANDS = re.compile(r"\$[A-Za-z_{(]")


@dataclass(frozen=True, kw_only=True)
class ServeLine:
    """A command line in its parts.

    Attributes:
        environment: variables in front of it.
        before: words in front of `inlay`, such as `taskset -c 0-7`.
        arguments: behind `inlay`: `serve`, MODEL, options.
    """

    environment: Mapping[str, str]
    before: tuple[str, ...]
    arguments: tuple[str, ...]

    def text(self, *, width: int | None = None, literal: bool = False) -> str:
        """As to be typed; broken with backslashes before options where it is wider than `width`.

        Args:
            literal: `$` in words stands for itself, as in words that a shell has expanded.
        """
        quote = shlex.quote if literal else _quoted
        pieces = [f"{name}={quote(value)}" for name, value in self.environment.items()]
        pieces += [*map(quote, self.before), "inlay"]
        for word in self.arguments:
            if word.startswith("--"):
                pieces.append(word)
            elif pieces[-1].startswith("--"):
                pieces[-1] += f" {quote(word)}"
            else:
                pieces.append(quote(word))
        lines = [pieces[0]]
        for piece in pieces[1:]:
            if width is not None and len(lines[-1]) + len(piece) + 3 > width:
                lines.append(f"  {piece}")
            else:
                lines[-1] += f" {piece}"
        return " \\\n".join(lines)


def make_line(
    asked: Asked, program: Program, container: Container | None, before: Sequence[str]
) -> tuple[ServeLine, list[Finding]]:
    """The line, and what became of every flag.

    Args:
        before: words in front of `inlay`.
    """
    plan = Plan(asked)
    choose_model(plan)
    imply(plan, program)
    fit_device(plan)
    fit_ranks(plan)
    fit_sizes(plan)
    if container is not None:
        leave_container(plan, container)
    arguments = ["serve", plan.put("MODEL", plan.value("MODEL") or MODEL)]
    for option in OPTIONS:
        value = plan.value(option)
        if value is None or value == "auto":
            continue
        for part in value.split(PARTED) if option in REPEATED else (value,):
            arguments += [option, part]
            plan.put(option, f"{option} {part}")
    for path in plan.settings():
        setting = f"{path}={plan.value(path)}"
        arguments += ["--set", setting]
        plan.put(path, f"--set {setting}")
    environment = plan.environment()
    for name, value in environment.items():
        plan.put(f"{ENV}{name}", f"{name}={value}")
    line = ServeLine(environment=environment, before=tuple(before), arguments=tuple(arguments))
    return line, plan.findings()


def _quoted(word: str) -> str:
    """A word for a shell; one that it would expand stays so."""
    if not _EXPANDS.search(word):
        return shlex.quote(word)
    return '"' + re.sub(r'(["\\`])', r"\\\1", word) + '"'
