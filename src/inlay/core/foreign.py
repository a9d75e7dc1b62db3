"""Where an engine of another system is, as a deployment's file says it."""

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from inlay.core.errors import ConfigError

Kind = Literal["auto", "vllm", "sglang"]
KINDS: tuple[Kind, ...] = ("auto", "vllm", "sglang")


@dataclass(frozen=True, kw_only=True)
class ForeignEngine:
    """One engine that somebody else starts, and that dispatchers send requests to.

    Attributes:
        url: of its HTTP server.
        kind: what it is; `auto` asks it.
        api_key: that it wants.
        served_model: its name for the model; None: the first that it lists.
        kv_events: ZeroMQ address of its KV events, "tcp://HOST:PORT". One with a `*` is bound, for
            an engine that connects. None asks the engine, and "none" does without.
        kv_replay: where events are said again; None as for `kv_events`.
        max_running: requests that it computes at a time; None asks the engine, or takes its
            default.
        prefill_chunk: most prompt tokens that it computes in a step; None as for `max_running`.
    """

    url: str
    kind: Kind = "auto"
    api_key: str | None = None
    served_model: str | None = None
    kv_events: str | None = None
    kv_replay: str | None = None
    max_running: int | None = None
    prefill_chunk: int | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url is {self.url!r}: write http://HOST:PORT")
        if self.kind not in KINDS:
            raise ConfigError(f"kind is {self.kind!r}: it must be one of {', '.join(KINDS)}")
        for name in ("kv_events", "kv_replay"):
            address = getattr(self, name)
            if address not in (None, "none") and not address.startswith(("tcp://", "ipc://")):
                raise ConfigError(f"{name} is {address!r}: write tcp://HOST:PORT, or none")
        for name in ("max_running", "prefill_chunk"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}: it must be at least 1")

    @property
    def host(self) -> str:
        """Where it runs."""
        return urlsplit(self.url).hostname or ""
