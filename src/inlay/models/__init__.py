"""Models: where they come from, their text, their weights, and the decoder that runs them.

Importing this package loads no torch; the names that need it load it on first use.
"""

from typing import TYPE_CHECKING, Any

from inlay.models.batch import ForwardBatch

if TYPE_CHECKING:
    from inlay.models.conversion.convert import convert
    from inlay.models.kv_pool import KvPool
    from inlay.models.model import Model, load_model

_LAZY = {
    "KvPool": "inlay.models.kv_pool",
    "Model": "inlay.models.model",
    "load_model": "inlay.models.model",
    "convert": "inlay.models.conversion.convert",
}

__all__ = [
    "ForwardBatch",
    "KvPool",
    "Model",
    "convert",
    "load_model",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.models' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
