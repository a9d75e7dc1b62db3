"""The /commands of a chat. Each takes the conversation, its title, and the text after its name."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from inlay.core.errors import ConfigError
from inlay.core.overrides import apply_overrides
from inlay.serve.chat.conversation import ChatOptions, Conversation


class Then(Enum):
    """What the session does after a command."""

    GO_ON = "go on"
    ANSWER = "answer"
    SHOW_STATS = "stats"
    LEAVE = "leave"


@dataclass(frozen=True)
class Outcome:
    """Lines to show, and what comes next."""

    lines: tuple[str, ...] = ()
    then: Then = Then.GO_ON


def is_command(text: str) -> bool:
    """Whether a message is a command: it begins with / and a letter."""
    return text.startswith("/") and text[1:2].isalpha()


def run_command(text: str, conversation: Conversation, title: str = "") -> Outcome:
    """Carry out a command.

    Args:
        title: tells the conversation from others that take the same command; empty: it is alone.

    Raises:
        ConfigError: an unknown command (with the nearest one) or a wrong argument.
    """
    name, _, rest = text[1:].partition(" ")
    if name not in _COMMANDS:
        close = difflib.get_close_matches(name, _COMMANDS, n=1)
        hint = f" Did you mean /{close[0]}?" if close else " /help lists the commands."
        raise ConfigError(f"there is no command /{name}.{hint}")
    return _COMMANDS[name][0](conversation, title, rest.strip())


def _help(conversation: Conversation, title: str, rest: str) -> Outcome:
    lines = [f"/{name:<8} {text}" for name, (_, text) in _COMMANDS.items() if text]
    lines += [
        'Lines between two """ are one message, and so are lines that end with \\.',
        "Ctrl-C stops an answer, Ctrl-D leaves.",
    ]
    return Outcome(tuple(lines))


def _system(conversation: Conversation, title: str, rest: str) -> Outcome:
    if not rest:
        return Outcome((conversation.system or "no system message",))
    conversation.system = None if rest == "none" else rest
    return Outcome(("system message " + ("removed" if rest == "none" else "set"),))


def _reset(conversation: Conversation, title: str, rest: str) -> Outcome:
    conversation.reset()
    return Outcome(("the conversation starts anew",))


def _set(conversation: Conversation, title: str, rest: str) -> Outcome:
    if rest:
        conversation.options = apply_overrides(
            conversation.options,
            rest.split(),
            option="/set",
            form="name=value, for example temperature=0.7",
        )
    fields = conversation.options.fields()
    if not fields:
        names = ", ".join(ChatOptions.__dataclass_fields__)
        return Outcome(("all at the model's defaults", f"can be set: {names}"))
    return Outcome(tuple(f"{name}={value}" for name, value in fields.items()))


def _regen(conversation: Conversation, title: str, rest: str) -> Outcome:
    if not conversation.take_back_answer():
        raise ConfigError("/regen: there is no question to answer again")
    return Outcome(then=Then.ANSWER)


def _save(conversation: Conversation, title: str, rest: str) -> Outcome:
    file = _own(_file("save", rest), title)
    conversation.save(file)
    return Outcome((f"saved {len(conversation.messages)} messages to {file}",))


def _load(conversation: Conversation, title: str, rest: str) -> Outcome:
    file = _file("load", rest)
    if (own := _own(file, title)).exists():
        file = own
    conversation.load(file)
    return Outcome((f"loaded {len(conversation.messages)} messages from {file}",))


def _file(command: str, rest: str) -> Path:
    if not rest:
        raise ConfigError(f"/{command}: name a file, for example /{command} talk.json")
    return Path(rest).expanduser()


def _own(file: Path, title: str) -> Path:
    """Where one of several conversations is saved: each has a file."""
    return file.with_stem(f"{file.stem}.{title}") if title and file.name else file


def _stats(conversation: Conversation, title: str, rest: str) -> Outcome:
    return Outcome(then=Then.SHOW_STATS)


def _exit(conversation: Conversation, title: str, rest: str) -> Outcome:
    return Outcome(then=Then.LEAVE)


_COMMANDS: dict[str, tuple[Callable[[Conversation, str, str], Outcome], str]] = {
    "help": (_help, "this list"),
    "system": (_system, "TEXT: set the system message; none removes it"),
    "reset": (_reset, "forget the conversation"),
    "set": (_set, "temperature=0.7 top_p=0.9 max_tokens=200 ...: how answers are sampled"),
    "regen": (_regen, "answer the last question again"),
    "save": (
        _save,
        "FILE: write the conversation as JSON; where two answer, each has a file: talk.before.json",
    ),
    "load": (
        _load,
        "FILE: go on with a saved conversation; where two answer, each with its own, if it has one",
    ),
    "stats": (_stats, "tokens and times of this session"),
    "exit": (_exit, "leave"),
    "quit": (_exit, ""),
}
