"""The configuration of commands that run an engine of their own: `chat` and `generate`."""

from collections.abc import Sequence
from dataclasses import dataclass

from inlay.engine.config import EngineConfig
from inlay.serve.commands.options import with_assignments, with_engine_options


@dataclass(frozen=True, kw_only=True)
class LocalConfig:
    """What `--set` can reach; the same paths as in `inlay serve`."""

    engine: EngineConfig


def local_engine_config(
    *,
    model: str | None,
    device: str,
    weight_format: str,
    context: int | None,
    kv_memory: str | None,
    threads: int | None,
    assignments: Sequence[str] | None,
) -> EngineConfig:
    """Flags first, then `--set`.

    Raises:
        ConfigError: a flag or a `--set` is out of its range, or names nothing.
    """
    engine = with_engine_options(
        EngineConfig(model=model),
        model=model,
        device=device,
        weight_format=weight_format,
        context=context,
        kv_memory=kv_memory,
        threads=threads,
    )
    return with_assignments(LocalConfig(engine=engine), assignments).engine
