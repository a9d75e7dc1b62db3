"""Takes a command apart as a shell does: variables, wrappers, containers, the program, its words.

Runs nothing and expands nothing.
"""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field

from inlay.core.errors import ConfigError

# Also of a copy that lost its line breaks, or the line behind the last one.
_CONTINUED = re.compile(r"[\\^`][ \t]*\r?\n|\\[ \t]+(?=-)|\\\s*\Z")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_QUOTES = str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")  # as slides and web pages have them
_STREAM = re.compile(r"(?<=\s)[0-2](?=>)")  # of `2> file`
_OPERATORS = ";&|<>\n"  # no parentheses: $(nproc) is a word
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*(?:\.exe)?|py(?:\.exe)?")
_SHELLS = ("bash", "sh", "zsh")
_ENGINES = ("docker", "podman", "nerdctl")
# Wrappers that only start something, with their options that take a value.
_DROPPED: dict[str, set[str]] = {
    "env": {"-u", "-C"},
    "sudo": {"-u", "-g"},
    "nohup": set(),
    "exec": set(),
    "time": set(),
    "setsid": set(),
    "stdbuf": {"-o", "-e", "-i"},
    "uvx": {"--from", "--python", "--with", "-p"},
}
_RUNNERS = {"uv", "poetry", "pdm", "pixi", "conda", "mamba", "micromamba", "srun"}
# Wrappers that limit processors or memory; Inlay goes by what they leave, so they stay.
_KEPT: dict[str, set[str]] = {
    "taskset": {"-c", "--cpu-list"},
    "numactl": {
        "-N", "-m", "-C", "-i", "-p", "-P", "-w", "--cpunodebind", "--membind", "--physcpubind",
        "--interleave", "--preferred",
    },
    "nice": {"-n"},
    "ionice": {"-c", "-n"},
    "chrt": set(),
}  # fmt: skip
# Options of `docker run` without a value.
_DOCKER_SWITCHES = {
    "-d", "-i", "-t", "-P", "-q", "-it", "-ti", "-dit", "-itd", "-id", "-dt", "-td", "--detach",
    "--interactive", "--tty", "--rm", "--init", "--privileged", "--publish-all", "--read-only",
    "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--quiet", "--replace", "--tls-verify",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Container:
    """What `docker run` says about a command.

    Attributes:
        image: with its tag.
        ports: host address (or empty), host port, port inside.
        volumes: directory of the host, directory inside.
        options: as they were written, one entry each.
    """

    image: str
    ports: tuple[tuple[str, str, str], ...]
    volumes: tuple[tuple[str, str], ...]
    options: tuple[str, ...]


@dataclass(kw_only=True)
class Command:
    """One simple command.

    Attributes:
        words: the program first; `-m MODULE` or a script for those of Python.
        variables: set for it.
        before: wrappers that limit what it may use.
        dropped: words around it that mean nothing to Inlay.
    """

    words: list[str]
    variables: dict[str, str] = field(default_factory=dict)
    before: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    container: Container | None = None


def split_text(text: str) -> list[list[str]]:
    """The simple commands of a text, as words.

    Raises:
        ConfigError: a quotation is not closed.
    """
    text = _STREAM.sub("", _CONTINUED.sub(" ", text.translate(_QUOTES)))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    lexer.commenters = ""
    lexer.whitespace = " \t\r"  # a new line ends a command
    commands: list[list[str]] = [[]]
    to_a_file = False
    try:
        for word in lexer:
            if not word or set(word) - set(_OPERATORS):
                if not to_a_file:
                    commands[-1].append(word)
                to_a_file = False
            elif set(word) & set("<>"):
                to_a_file = True
            else:
                commands.append([])
    except ValueError as error:
        raise ConfigError(f"the command cannot be read ({error}): check its quotes") from None
    return [command for command in commands if command]


def take_apart(words: Sequence[str]) -> Command:
    """Look through variables, wrappers, containers and Python at one simple command."""
    command = Command(words=list(words))
    if command.words and command.words[0] in ("$", "#", "%", ">"):
        command.words.pop(0)  # a prompt, copied along
    while command.words and _peel(command):
        pass
    _look_into_python(command)
    return command


def _peel(command: Command) -> bool:
    """Take one layer off; whether there was one."""
    words = command.words
    first = words[0].rpartition("/")[2]
    if _ASSIGNMENT.match(words[0]):
        name, _, value = words.pop(0).partition("=")
        command.variables[name] = value
        return True
    if first == "export":
        words.pop(0)
        return bool(words) and _ASSIGNMENT.match(words[0]) is not None
    if first in _DROPPED or first in _KEPT:
        count = 1 + _options(words[1:], _DROPPED.get(first) or _KEPT.get(first) or set())
        if first in ("taskset", "chrt") and not {"-c", "--cpu-list"} & set(words[:count]):
            count += 1  # the mask, or the priority
        (command.before if first in _KEPT else command.dropped).extend(words[:count])
        del words[:count]
        return True
    if first in _RUNNERS and (first == "srun" or words[1:2] == ["run"]):
        count = 1 if first == "srun" else 2
        valued = {"-n", "-p", "-N", "-c", "--name", "--prefix", "--with", "--python", "--project"}
        count += _options(words[count:], valued)
        command.dropped += words[:count]
        del words[:count]
        return True
    if first in _SHELLS and words[1:2] in (["-c"], ["-lc"]):
        inner = split_text(" ".join(words[2:3]))
        command.words = inner[-1] if inner else []
        return True
    if first in _ENGINES and "run" in words[1:3] and command.container is None:
        _open_container(command)
        return True
    return False


def _options(words: Sequence[str], valued: set[str]) -> int:
    """How many words are options, those that take a value with it."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "--":
        at += 2 if words[at] in valued else 1
    return at + (words[at : at + 1] == ["--"])


def _open_container(command: Command) -> None:
    """Read `docker run OPTIONS IMAGE WORDS...`."""
    words = command.words
    at = words.index("run") + 1
    options: list[tuple[str, str]] = []
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        at += 1
        if not equals and name not in _DOCKER_SWITCHES and at < len(words):
            value = words[at]
            at += 1
        options.append((name, value))
    if at >= len(words):
        raise ConfigError("the command names no image after `run`: copy all of it")
    ports, volumes, entry, other = [], [], [], []
    for name, value in options:
        if name in ("-p", "--publish"):
            host, _, inside = value.partition("/")[0].rpartition(":")
            address, _, port = host.rpartition(":")
            ports.append((address, port or inside, inside))
        elif name in ("-v", "--volume"):
            outside, _, rest = value.partition(":")
            volumes.append((outside, rest.partition(":")[0]))
        elif name in ("-e", "--env") and "=" in value:
            variable, _, text = value.partition("=")
            command.variables[variable] = text
            continue
        elif name == "--entrypoint" and value:
            entry = [value]
        other.append(f"{name} {value}".strip())
    command.container = Container(
        image=words[at], ports=tuple(ports), volumes=tuple(volumes), options=tuple(other)
    )
    command.words = [*entry, *words[at + 1 :]]


def _look_into_python(command: Command) -> None:
    """`python -u -m MODULE ...` to `-m MODULE ...`, `python SCRIPT ...` to `SCRIPT ...`."""
    words = command.words
    if not words or not _PYTHON.fullmatch(words[0].rpartition("/")[2].rpartition("\\")[2]):
        return
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-W", "-X") else 1
    if words[at : at + 1] == ["-m"]:
        words[at : at + 2] = [" ".join(words[at : at + 2])]
    del words[:at]
