"""The four environment variables that Inlay reads; nothing else in the package reads any.

`INLAY_LOG`        log level (default `info`), `INLAY_LOG=debug,json` for JSON lines
`INLAY_ISA`        kernel variant to force (`scalar`, `avx2`, `avx512`, ...)
`INLAY_CACHE_DIR`  where measured machine data and files of packages go (default `~/.cache/inlay`);
                   models from hubs lie in the hub's own cache, shared with other programs
`INLAY_NATIVE`     `0` runs the NumPy references instead of the compiled extension
"""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The environment as read at one moment."""

    log: str
    isa: str | None
    cache_dir: Path
    native: bool


def read_settings() -> Settings:
    """Read the environment now."""
    return Settings(
        log=os.environ.get("INLAY_LOG", "info"),
        isa=os.environ.get("INLAY_ISA") or None,
        cache_dir=Path(os.environ.get("INLAY_CACHE_DIR") or Path.home() / ".cache" / "inlay"),
        native=os.environ.get("INLAY_NATIVE", "1") != "0",
    )
