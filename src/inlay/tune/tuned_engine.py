"""A serving engine of a model with a run's adapters."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from inlay.engine import Engine, EngineConfig
from inlay.tune.config import TuneConfig
from inlay.tune.merged_model import export


@contextmanager
def tuned_engine(
    config: TuneConfig, directory: Path, say: Callable[[str], None]
) -> Iterator[Engine]:
    """An engine for a while, in this process.

    Args:
        config: of the run; its adapters are added.
        directory: of the model.
        say: takes a line where something takes long.

    Raises:
        ModelError, ResourceError: as the engine and `read_adapter`.
    """
    with tempfile.TemporaryDirectory(prefix="inlay-merged-") as folder:
        if config.adapter_name_or_path:
            say("merging adapters for the engine")
            merged = replace(config, model_name_or_path=str(directory), export_dir=f"{folder}/model")
            directory = export(merged, say=say)
        yield Engine(
            EngineConfig(
                model=str(directory),
                device="cpu" if config.use_cpu else "auto",
                weight_format=config.base_format,
                threads=config.cpu_infer,
            )
        )
