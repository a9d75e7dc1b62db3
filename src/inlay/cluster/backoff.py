"""How long to wait before a process is started again."""

from dataclasses import dataclass

from inlay.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BackoffConfig:
    """Waits double with each end.

    Attributes:
        first_s: after the first.
        most_s: they do not grow beyond it.
        ready_most_s: nor beyond this if the process had been ready: it serves between two ends, and
            its start takes time enough.
        well_s: after a process ran for so long, its end counts as the first again.
    """

    first_s: float = 0.1
    most_s: float = 10.0
    ready_most_s: float = 0.5
    well_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s:
            raise ConfigError(
                f"first_s is {self.first_s} and most_s {self.most_s}: write 0 < first_s <= most_s"
            )
        if not self.ready_most_s >= 0:
            raise ConfigError(f"ready_most_s is {self.ready_most_s}: it must be at least 0")
        if not self.well_s >= 0:
            raise ConfigError(f"well_s is {self.well_s}: it must be at least 0")


class Backoff:
    """The waits of one process."""

    def __init__(self, config: BackoffConfig) -> None:
        self._config = config
        self._next_s = config.first_s

    def after(self, ran_s: float) -> float:
        """Seconds to wait when it ended; `ran_s` is how long it had been ready, 0 if never."""
        config = self._config
        wait_s = config.first_s if ran_s > config.well_s else self._next_s
        if ran_s > 0:
            wait_s = min(wait_s, config.ready_most_s)
        self._next_s = min(config.most_s, 2 * wait_s)
        return wait_s
