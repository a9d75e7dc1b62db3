"""What users meet: the OpenAI-compatible server, the chat page and the command line.

Exports load on first use, so that the command line answers quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inlay.serve.app import create_app
    from inlay.serve.config import ServeConfig
    from inlay.serve.server import run_server
    from inlay.serve.service import Service

_MODULES = {
    "ServeConfig": "config",
    "Service": "service",
    "create_app": "app",
    "run_server": "server",
}

__all__ = ["ServeConfig", "Service", "create_app", "run_server"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
