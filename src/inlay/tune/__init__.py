"""Fine-tuning: LoRA on models larger than the GPU, with frozen experts on the CPU."""

from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Batch, Dataset, Example, collate
from inlay.tune.data.load import TuneData
from inlay.tune.export import export
from inlay.tune.run import prepare, train
from inlay.tune.trainer import RunResult, StepFigures, Watcher

__all__ = [
    "Batch",
    "Dataset",
    "Example",
    "RunResult",
    "StepFigures",
    "TuneConfig",
    "TuneData",
    "Watcher",
    "collate",
    "export",
    "prepare",
    "train",
]
