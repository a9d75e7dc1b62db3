"""What has been said so far and how answers are sampled. Plain data, no input or output."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError
from inlay.core.text_files import read_json

_ROLES = ("user", "assistant", "system", "tool")


@dataclass(frozen=True, kw_only=True)
class ChatOptions:
    """How answers are sampled; None leaves a field to the model's own default.

    Attributes:
        max_tokens: limit of each answer.
        stop: texts that end an answer.
        ignore_eos: go on after the model's own end, up to `max_tokens`.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    ignore_eos: bool | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0, 100),
            ("top_p", 0, 1),
            ("min_p", 0, 1),
            ("max_tokens", 1, 2**31),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} must be in {low}..{high}, got {value}")

    def fields(self) -> dict[str, Any]:
        """The fields that are set, as a request has them."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return found | {"stop": list(found["stop"])} if "stop" in found else found


@dataclass
class Conversation:
    """Messages, the system message apart, and the sampling options."""

    system: str | None = None
    messages: list[dict[str, str]] = field(default_factory=list)
    options: ChatOptions = field(default_factory=ChatOptions)

    def prompt(self) -> list[dict[str, Any]]:
        """All messages in the order a request has them."""
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *self.messages]

    def ask(self, text: str) -> None:
        """Add a message of the user."""
        self.messages.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        """Add the model's answer."""
        self.messages.append({"role": "assistant", "content": text})

    def take_back_answer(self) -> bool:
        """Remove the last answer so that the question can be asked again; False without one."""
        if self.messages and self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        return bool(self.messages) and self.messages[-1]["role"] == "user"

    def reset(self) -> None:
        """Forget all messages; the system message and the options stay."""
        self.messages.clear()

    def save(self, file: Path) -> None:
        """Write everything as JSON.

        Raises:
            ConfigError: the file cannot be written.
        """
        content = {
            "system": self.system,
            "messages": self.messages,
            "options": self.options.fields(),
        }
        try:
            file.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write {file}: {error.strerror}") from None

    def load(self, file: Path) -> None:
        """Take over what `save` wrote, or a plain JSON list of messages.

        Raises:
            ConfigError: the file cannot be read, or holds something else.
        """
        try:
            content = read_json(file, remedy="name what /save has written", error=ConfigError)
        except OSError as error:
            raise ConfigError(f"cannot read {file}: {error.strerror}") from None
        if isinstance(content, list):
            content = {"messages": content}
        try:
            messages = [
                {"role": str(message["role"]), "content": str(message["content"])}
                for message in content["messages"]
            ]
            options = dict(content.get("options") or {})
            if "stop" in options:
                options["stop"] = tuple(options["stop"])
            loaded = ChatOptions(**options)
        except (TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{file} does not hold a conversation: {error!r}") from None
        if any(message["role"] not in _ROLES for message in messages):
            raise ConfigError(f"{file}: roles must be among {', '.join(_ROLES)}")
        self.system = content.get("system")
        self.messages = messages
        self.options = loaded
