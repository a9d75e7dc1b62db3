"""`import mooncake` finds Inlay: in this process, and in those that it starts."""

import os
import sys
from pathlib import Path

from inlay.core.errors import ConfigError

SHIM = Path(__file__).with_name("shim")
_VARIABLE = "PYTHONPATH"


def activate() -> None:
    """Put the modules `mooncake.*` of `SHIM` before all others; also for Python children.

    May be called again.

    Raises:
        ConfigError: another package `mooncake` was imported before.
    """
    loaded = sys.modules.get("mooncake")
    origin = None if loaded is None else getattr(loaded, "__file__", None)
    if loaded is not None and (origin is None or SHIM not in Path(origin).parents):
        raise ConfigError(
            f"mooncake was imported from {origin} before: call activate() first, or start with "
            "python -m inlay.connect.mooncake"
        )
    shim = str(SHIM)
    if shim not in sys.path:
        sys.path.insert(0, shim)
    inherited = os.environ.get(_VARIABLE, "")
    if shim not in inherited.split(os.pathsep):
        os.environ[_VARIABLE] = os.pathsep.join(filter(None, (shim, inherited)))


def deactivate() -> None:
    """Undo `activate`; modules that were imported meanwhile go, objects of theirs stay."""
    shim = str(SHIM)
    sys.path[:] = [entry for entry in sys.path if entry != shim]
    left = [entry for entry in os.environ.get(_VARIABLE, "").split(os.pathsep) if entry != shim]
    if any(left):
        os.environ[_VARIABLE] = os.pathsep.join(left)
    else:
        os.environ.pop(_VARIABLE, None)
    for name in [name for name in sys.modules if name.split(".")[0] == "mooncake"]:
        del sys.modules[name]
