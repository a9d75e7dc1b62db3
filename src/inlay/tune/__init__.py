"""Fine-tuning: LoRA on models larger than the GPU, with frozen experts on the CPU.

Importing this package loads no torch; the names that need it load it on first use.
"""

from typing import TYPE_CHECKING, Any

from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Batch, Dataset, Example, collate
from inlay.tune.data.load import TuneData

if TYPE_CHECKING:
    from inlay.tune.merged_model import export
    from inlay.tune.predictions import Predictions, predict
    from inlay.tune.run import prepare, train
    from inlay.tune.trainer import RunResult, StepFigures, Watcher

_LAZY = {
    "Predictions": "inlay.tune.predictions",
    "RunResult": "inlay.tune.trainer",
    "StepFigures": "inlay.tune.trainer",
    "Watcher": "inlay.tune.trainer",
    "export": "inlay.tune.merged_model",
    "predict": "inlay.tune.predictions",
    "prepare": "inlay.tune.run",
    "train": "inlay.tune.run",
}

__all__ = [
    "Batch",
    "Dataset",
    "Example",
    "Predictions",
    "RunResult",
    "StepFigures",
    "TuneConfig",
    "TuneData",
    "Watcher",
    "collate",
    "export",
    "predict",
    "prepare",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'inlay.tune' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
