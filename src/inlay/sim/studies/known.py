"""Models of studies, by name."""

from inlay.core.errors import ConfigError
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.model_shape import ModelShape


def known_shape(name: str) -> ModelShape:
    """The shape of one of the known models.

    Raises:
        ConfigError: there is none of that name.
    """
    config = known_config(name)
    if config is None:
        raise ConfigError(f"{name} is not among the known models")
    return shape_of(config)
