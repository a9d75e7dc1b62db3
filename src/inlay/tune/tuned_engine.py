"""What the serving engine is to run for a run's answers: its model with its adapter."""

from inlay.core.errors import ConfigError
from inlay.core.model_config import read_shape
from inlay.engine.config import EngineConfig
from inlay.models.source import resolve_model
from inlay.tune.config import TuneConfig
from inlay.tune.placement_rules import follow_rules

ADAPTER = "tuned"
"""What the engine calls the adapter."""


def tuned_engine(config: TuneConfig) -> EngineConfig:
    """Settings of an engine that serves the model, and its adapter under the name `ADAPTER`.

    Raises:
        ConfigError: several adapters are named.
        ModelError: there is no such model.
    """
    names = config.adapter_name_or_path
    if len(names) > 1:
        raise ConfigError(
            f"adapter_name_or_path={','.join(names)}: one adapter answers at a time; inlay tune "
            "export merges several into a model"
        )
    source = resolve_model(
        config.model_name_or_path, weight_format=config.base_format, cache_dir=config.cache_path
    )
    # Formats of a run's rules count for its answers, too; devices are the engine's own choice.
    config = follow_rules(config, read_shape(source.directory), 0).config
    return EngineConfig(
        model=str(source.directory),
        device="cpu" if config.use_cpu else "auto",
        weight_format=config.base_format,
        threads=config.cpu_infer,
        adapters=tuple(f"{ADAPTER}={name}" for name in names),
    )
