"""How a server listens and what it allows; the engine's own settings are a field of it."""

from dataclasses import dataclass, field
from pathlib import Path

from inlay.core.errors import ConfigError
from inlay.engine.config import EngineConfig
from inlay.serve.api_key import check_api_key
from inlay.serve.parsers.notations import check_tool_parser
from inlay.serve.weights.config import UpdateConfig


@dataclass(frozen=True, kw_only=True)
class ServeConfig:
    """The configuration of `inlay serve`.

    Attributes:
        host: address to listen on; `0.0.0.0` listens on every network of the machine.
        port: TCP port; 0 lets the system choose one (the banner names it).
        served_model_name: names that clients may use for the model, one or a comma-separated
            list or a tuple; the first one is reported in answers. Empty uses the name that the
            model was asked for by.
        api_key: if set, requests need `Authorization: Bearer <api_key>`; `/health` stays open.
        chat_template: a Jinja file to write conversations with instead of the model's own template.
        tool_parser: the notation in which the model writes tool calls; None recognises it by the
            chat template.
        cors_origins: web origins whose pages may call the server; `("*",)` allows every page.
        max_body_bytes: larger request bodies are refused with 413.
        max_choices: largest number of prompts times `n` of one request; `n` itself may be at most
            `engine.scheduler.max_running` too.
        max_logprobs: largest number of alternatives per token that a request may ask for.
        max_completion_tokens: cap on the output of every request; None caps by the context only.
        drain_s: how long running requests may go on after a stop signal.
        start_timeout_s: how long the engine may take to load the model.
        page: serve the chat page at `/`.
        access_log: log a line per request.
        weights: where new weights are pulled from.
        engine: the engine's configuration; `engine.model` names the model.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | tuple[str, ...] = ()
    api_key: str | None = None
    chat_template: str | None = None
    tool_parser: str | None = None
    cors_origins: tuple[str, ...] = ()
    max_body_bytes: int = 32 * 2**20
    max_choices: int = 1024
    max_logprobs: int = 20
    max_completion_tokens: int | None = None
    drain_s: float = 3.0
    start_timeout_s: float = 1800.0
    page: bool = True
    access_log: bool = False
    weights: UpdateConfig = field(default_factory=UpdateConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port is {self.port}: it must be in 0..65535")
        if not self.host:
            raise ConfigError("host is empty: write an address, for example 127.0.0.1")
        if any(not name for name in self.names):
            raise ConfigError("served_model_name has an empty name")
        check_api_key(self.api_key)
        if self.tool_parser is not None:
            check_tool_parser(self.tool_parser)
        for name, low, value in (
            ("max_body_bytes", 1024, self.max_body_bytes),
            ("max_choices", 1, self.max_choices),
            ("max_logprobs", 0, self.max_logprobs),
            ("drain_s", 0, self.drain_s),
            ("start_timeout_s", 1, self.start_timeout_s),
        ):
            if value < low:
                raise ConfigError(f"{name} is {value}: it must be at least {low}")
        if self.max_completion_tokens is not None and self.max_completion_tokens < 1:
            raise ConfigError(
                f"max_completion_tokens is {self.max_completion_tokens}: it must be at least 1"
            )

    def read_chat_template(self) -> str | None:
        """The text of `chat_template`; None where it is the model's own.

        Raises:
            ConfigError: the file cannot be read, or is no template.
        """
        if self.chat_template is None:
            return None
        from inlay.models.chat_template import read_template_file  # it imports Jinja

        return read_template_file(Path(self.chat_template))

    @property
    def names(self) -> tuple[str, ...]:
        """`served_model_name` as a tuple."""
        names = self.served_model_name
        if isinstance(names, str):
            names = tuple(part.strip() for part in names.split(",")) if names else ()
        return names
