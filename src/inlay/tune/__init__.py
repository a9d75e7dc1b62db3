"""Fine-tuning: LoRA on models larger than the GPU, with frozen experts on the CPU."""

from inlay.tune.config import TuneConfig
from inlay.tune.data.example import Batch, Dataset, Example, collate

__all__ = ["Batch", "Dataset", "Example", "TuneConfig", "collate"]
