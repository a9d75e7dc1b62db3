"""One serving instance: queue, batches, sampling, and the process around them.

Exports load on first use, so that front ends get the client and the configuration without
torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inlay.engine.client import EngineClient
    from inlay.engine.completion import Completion, CompletionChoice
    from inlay.engine.config import EngineConfig, SchedulerConfig
    from inlay.engine.engine import Engine

_MODULES = {
    "Completion": "completion",
    "CompletionChoice": "completion",
    "Engine": "engine",
    "EngineClient": "client",
    "EngineConfig": "config",
    "SchedulerConfig": "config",
}

__all__ = [
    "Completion",
    "CompletionChoice",
    "Engine",
    "EngineClient",
    "EngineConfig",
    "SchedulerConfig",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
