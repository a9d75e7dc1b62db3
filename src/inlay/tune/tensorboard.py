"""A run's log as TensorBoard reads it, under the names that Transformers gives its curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from inlay.core.errors import ConfigError

_EVALUATION = "eval_"
_NOT_CURVES = ("step",)


class Report(Protocol):
    """Takes what a run logs, besides its files."""

    def add(self, entry: Mapping[str, Any]) -> None:
        """An entry of the log, with its step."""
        ...


class TensorBoard:
    """A `Report` that writes event files.

    Args:
        directory: of these files; made if missing.
        first_step: steps that are done; what a run that was broken off wrote of later ones is not
            shown.

    Raises:
        ConfigError: as `check_tensorboard`.
    """

    def __init__(self, directory: Path, first_step: int) -> None:
        self._writer = check_tensorboard()(str(directory), purge_step=first_step + 1)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write each number of an entry, so that it can be seen at once."""
        for name, value in entry.items():
            if name in _NOT_CURVES:
                continue
            evaluated = name.startswith(_EVALUATION)
            tag = f"eval/{name.removeprefix(_EVALUATION)}" if evaluated else f"train/{name}"
            self._writer.add_scalar(tag, value, entry["step"])
        self._writer.flush()

    def close(self) -> None:
        """End its thread."""
        self._writer.close()


def check_tensorboard() -> Any:
    """What writes event files: `SummaryWriter` of torch.

    Raises:
        ConfigError: the package behind it is not installed; says how to.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "report_to=tensorboard needs the package tensorboard, which is not installed: "
            "pip install tensorboard, or set report_to=none"
        ) from None
    return SummaryWriter
