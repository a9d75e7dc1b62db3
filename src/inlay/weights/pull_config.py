"""How a version is pulled."""

from dataclasses import dataclass

from inlay.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PullConfig:
    """How a version is pulled.

    Attributes:
        per_holder: transfers under way from one holder, 1 to 64.
        max_holders: peers that are asked at the same time besides publishers, 1 to 256.
        bucket_s: how long a transfer should take, in seconds; so many pieces are asked for at once.
        bucket_bytes: but no more than this; so much of memory of this host.
        look_s: time between two looks at what a holder has.
        deadline_s: for one transfer; then its holder counts as gone.
        timeout_s: without any new piece; then the pull fails.
    """

    per_holder: int = 2
    max_holders: int = 16
    bucket_s: float = 0.02
    bucket_bytes: int = 128 << 20
    look_s: float = 0.02
    deadline_s: float = 30.0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("per_holder", 1, 64), ("max_holders", 1, 256), ("bucket_s", 1e-4, 10.0),
            ("bucket_bytes", 4096, 1 << 30), ("look_s", 1e-3, 10.0), ("deadline_s", 0.1, 3600.0),
            ("timeout_s", 0.1, 86400.0),
        ):  # fmt: skip
            if not low <= (value := getattr(self, name)) <= high:
                raise ConfigError(f"{name} must be in {low}..{high}, got {value}")
