"""Models: where they come from, their text, their weights, and the decoder that runs them.

Importing this package loads no torch; the names that need it load it on first use.
"""

from typing import TYPE_CHECKING, Any

from inlay.models.batch import ForwardBatch

if TYPE_CHECKING:
    from inlay.models.kv_pool import KvPool
    from inlay.models.model import Model, load_model
    from inlay.models.packed import pack

_LAZY = {
    "KvPool": "inlay.models.kv_pool",
    "Model": "inlay.models.model",
    "load_model": "inlay.models.model",
    "pack": "inlay.models.packed",
}

__all__ = [
    "ForwardBatch",
    "KvPool",
    "Model",
    "load_model",
    "pack",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.models' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
