"""Where a server gets new weights."""

from dataclasses import dataclass

from inlay.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class UpdateConfig:
    """How a server pulls weights.

    Attributes:
        listen: "host:port" where other peers have them from here, port 0 for any free one; its
            host is also where instances on other machines have them from a dispatcher.
        token_file: 16 to 64 bytes that all peers hold; None: this user's token on this host.
        directory: where versions are kept, each in a directory; None: a temporary one. Instances
            behind a dispatcher read them there, or pull them where their machine has none.
        dtype: in which floats are held there, `BF16`, `F16` or `F32`; empty: as they are published.
        at_once: how many instances behind a dispatcher load at a time, after the first.
    """

    listen: str = "127.0.0.1:0"
    token_file: str | None = None
    directory: str | None = None
    dtype: str = ""
    at_once: int = 1

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise ConfigError(f"weights.at_once is {self.at_once}: it must be at least 1")
