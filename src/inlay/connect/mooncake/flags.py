"""Flags as Mooncake's programs take them: `--name=value`, `--name value`, `--switch`, `--noswitch`.

One dash does, too. What stands behind `--` is for Inlay.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from inlay.connect.mooncake.config import parse_bool
from inlay.core.errors import ConfigError

# Of the logs of Mooncake's programs; ours go to standard error.
LOG_FLAGS = frozenset(
    """
    alsologtoemail alsologtostderr colorlogtostderr drop_log_memory log_backtrace_at log_dir
    log_link log_prefix logbuflevel logbufsecs logemaillevel logfile_mode logmailer logtostderr
    max_log_size minloglevel stderrthreshold stop_logging_if_full_disk symbolize_stacktrace v
    vmodule
    """.split()
)
_HELP = frozenset(("-h", "-help", "--help", "--helpfull"))
_OFF = ("", "0", "false", "none")


@dataclass(frozen=True)
class Flags:
    """What a command line says.

    Attributes:
        values: by name, defaults among them; switches are "true" or "false".
        idle: flags that were given and have no effect here.
        rest: what stood behind `--`.
    """

    values: Mapping[str, str]
    idle: tuple[str, ...]
    rest: tuple[str, ...]

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        return parse_bool(self.values[name])

    def number(self, name: str) -> float:
        """A number. Raises `ConfigError` for another value."""
        try:
            return float(self.values[name])
        except ValueError:
            raise ConfigError(f"--{name} is {self.values[name]!r}: it must be a number") from None


def parse_flags(
    argv: Sequence[str],
    known: Mapping[str, str],
    idle: Collection[str],
    instead: Mapping[str, str] | None = None,
) -> Flags:
    """Read a command line.

    Args:
        argv: without the program.
        known: flags with their defaults; those of "true" or "false" are switches.
        idle: flags that are taken without effect, besides `LOG_FLAGS`.
        instead: flags that have no effect and would be missed, and what to do instead; they may be
            off.

    Raises:
        SystemExit: after the answer to --help.
        ConfigError: an unknown flag, one of `instead`, or one without its value; the message names
            it.
    """
    missed = {} if instead is None else instead
    idle = {*idle, *LOG_FLAGS, *missed}
    values, unused = dict(known), []
    words = list(argv)
    rest: list[str] = []
    if "--" in words:
        at = words.index("--")
        words, rest = words[:at], words[at + 1 :]
    if not _HELP.isdisjoint(words):
        listed = "\n".join(f"  --{name}={value}" for name, value in sorted(known.items()))
        print(f"flags with an effect, and their defaults:\n{listed}")
        raise SystemExit(0)
    while words:
        word = words.pop(0)
        name, given, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("-"):
            raise ConfigError(f"{word!r} is no flag: write --name=value")
        negated = name.removeprefix("no")
        if name in known or name in idle:
            switch = known.get(name) in ("true", "false")
            if not given and (switch or not words or words[0].startswith("-")):
                if name in known and not switch:
                    raise ConfigError(f"--{name} needs a value")
                value = "true"
            elif not given:
                value = words.pop(0)
        elif negated != name and not given and (negated in known or negated in idle):
            name, value = negated, "false"
        else:
            listed = ", ".join(sorted(known))
            raise ConfigError(f"there is no flag --{name}; those with an effect are {listed}")
        if name in known:
            values[name] = value
        elif name in missed:
            if value.lower() not in _OFF:
                raise ConfigError(f"--{name} has no effect here: {missed[name]}")
        else:
            unused.append(name)
    return Flags(values, tuple(unused), tuple(rest))
