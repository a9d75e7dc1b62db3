"""The values that a line will hold, while it is made, and which flag each comes from."""

from dataclasses import dataclass

from inlay.serve.migrate.flags import Ask, Asked
from inlay.serve.migrate.rows import Fate, Finding

OPTIONS = (
    "--host",
    "--port",
    "--served-model-name",
    "--api-key",
    "--chat-template",
    "--adapter",
    "--device",
    "--weight-format",
    "--context",
    "--threads",
)
"""Of `inlay serve`, in the order of the line."""

REPEATED = ("--adapter",)
"""Of these, options that are written once for each part of their value."""

ENV = "env:"
"""Begins the targets that are variables in front of the line."""

QUANTITY = "#"
"""Begins the targets that say something about the command; `choices` goes by them."""


@dataclass
class _Wanted:
    """A target's value now, and the flag that asked for it, if one did."""

    value: str
    ask: Ask | None


class Plan:
    """Targets with their values; every change says why."""

    def __init__(self, asked: Asked) -> None:
        """Take what counts: of two flags for one target, the one that comes first in the table."""
        self._asked = asked
        self._asks = sorted(asked.asks, key=lambda ask: ask.rank)
        self._wanted: dict[str, _Wanted] = {}
        for ask in self._asks:
            self._wanted.setdefault(ask.target, _Wanted(ask.value, ask))
        self._became: dict[str, list[str]] = {}
        self._followed: dict[str, Finding] = {}
        self._notes: list[Finding] = []

    def __contains__(self, target: str) -> bool:
        return target in self._wanted

    def value(self, target: str) -> str | None:
        """What the line will hold for a target."""
        wanted = self._wanted.get(target)
        return None if wanted is None else wanted.value

    def number(self, target: str, default: int) -> int:
        """The same as a number."""
        value = self.value(target)
        return default if value is None else int(value)

    def take(self, target: str) -> Ask | None:
        """Remove a target from the line; what asked for it."""
        wanted = self._wanted.pop(target, None)
        return None if wanted is None else wanted.ask

    def change(self, target: str, value: str) -> None:
        """Set a target in the name of the flag that asked for it."""
        self._wanted[target].value = value

    def credit(self, ask: Ask, target: str, value: str) -> None:
        """Set a target in the name of a flag that asked for a quantity."""
        self._wanted[target] = _Wanted(value, ask)

    def follow(self, target: str, value: str, reason: str) -> None:
        """Set a target for a reason of its own."""
        shown = f"{target} {value}" if target.startswith("-") else f"--set {target}={value}"
        self._wanted[target] = _Wanted(value, None)
        self._followed[target] = Finding(flag="", fate=Fate.LINE, becomes=(shown,), reason=reason)

    def note(self, fate: Fate, becomes: str, reason: str, flag: str = "") -> None:
        """Say something that no single flag says."""
        parts = (becomes,) if becomes else ()
        self._notes.append(Finding(flag=flag, fate=fate, becomes=parts, reason=reason))

    def put(self, target: str, words: str) -> str:
        """Note that a target is on the line as these words, which are returned."""
        wanted = self._wanted.get(target)
        if wanted is not None and wanted.ask is not None:
            self._became.setdefault(wanted.ask.flag, []).append(words)
        return words

    def settings(self) -> list[str]:
        """Targets that are paths of settings, sorted."""
        others = {*OPTIONS, "MODEL"}
        return sorted(
            target
            for target in self._wanted
            if target not in others and not target.startswith((ENV, QUANTITY))
        )

    def environment(self) -> dict[str, str]:
        """Variables in front of the line, sorted."""
        return {
            target.removeprefix(ENV): wanted.value
            for target, wanted in sorted(self._wanted.items())
            if target.startswith(ENV)
        }

    def findings(self) -> list[Finding]:
        """What became of every flag, once everything is put."""
        asks = {ask.flag: ask for ask in reversed(self._asks)}
        found = [
            Finding(flag=flag, fate=Fate.LINE, becomes=tuple(words), reason=asks[flag].reason)
            for flag, words in self._became.items()
        ]
        found += [*self._followed.values(), *self._notes, *self._asked.findings]
        explained = {finding.flag for finding in found}
        found += [
            Finding(flag=flag, fate=Fate.NEEDLESS, reason=self._why_not(ask))
            for flag, ask in asks.items()
            if flag not in explained
        ]
        return found

    def _why_not(self, ask: Ask) -> str:
        """Why a flag that asked for something is not on the line."""
        followed = self._followed.get(ask.target)
        if followed is not None:
            return f"instead {followed.becomes[0]}: {followed.reason}"
        winner = next(other for other in self._asks if other.target == ask.target)
        if winner.flag == ask.flag:
            return "that is what Inlay does unless told"
        same = winner.value == ask.value
        return f"says the same as {winner.flag}" if same else f"gives way to {winner.flag}"
