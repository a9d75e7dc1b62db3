"""Options that several commands share."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from inlay.engine.config import EngineConfig

C = TypeVar("C")

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A model directory, a *.gguf file, org/name\\[@revision]\\[:QUANT] on the Hugging "
        "Face hub (QUANT is of GGUF, such as Q4_K_M), modelscope:org/name, or a small model that "
        "chats: smollm2, smollm2-360m, qwen3-0.6b. Without it: the demo model.",
        show_default=False,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="Where the model runs: cpu; cuda, which is all GPUs, or cuda:N, with the CPU for what "
        "has no room there; or auto, cuda where there is a GPU."
    ),
]
WeightFormat = Annotated[
    str,
    typer.Option(
        help="How weights are held in memory: auto keeps what the files have; float32, bfloat16, "
        "float16, int8, int8:g32, uint4:g32, int4, int4:g64, int4:g128; or two, of experts and of "
        "the rest: int4:g32+bfloat16.",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1, help="Most tokens of prompt and answer together.", show_default="the model's own"
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="Memory for keys and values, such as 8GiB; on a CPU taken as it is used.",
        show_default="85 % of what a GPU has left; on a CPU what the context and 64 requests of "
        "4,096 tokens need, at most 30 % of what is free",
    ),
]
Threads = Annotated[
    int | None, typer.Option(min=1, help="CPU threads.", show_default="all that may be used")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Any other setting, e.g. engine.scheduler.max_batch_tokens=4096. May be repeated.",
        show_default=False,
    ),
]


def with_assignments(config: C, assignments: Sequence[str] | None) -> C:
    """What `--set` changes of a configuration with a field `engine`.

    Fields of the engine may be written without the `engine.` before them: `cache.host=8GiB`.

    Raises:
        ConfigError: see `apply_overrides`.
    """
    from inlay.core.overrides import apply_overrides
    from inlay.engine.config import EngineConfig

    own = {field.name for field in fields(config)}  # type: ignore[arg-type]
    engine = {field.name for field in fields(EngineConfig)} - own
    return apply_overrides(
        config,
        [
            f"engine.{one.lstrip()}" if re.split(r"[.=\s]", one.lstrip())[0] in engine else one
            for one in assignments or []
        ],
    )


ApiKey = Annotated[str | None, typer.Option(help="Key that requests must carry as Bearer token.")]


def with_engine_options(
    engine: "EngineConfig",
    *,
    model: str | None,
    device: str,
    weight_format: str,
    context: int | None,
    kv_memory: str | None,
    threads: int | None,
) -> "EngineConfig":
    """The engine configuration with the flags that were given."""
    changes: dict[str, Any] = {"model": model, "device": device, "weight_format": weight_format}
    if context is not None:
        changes["max_context_tokens"] = context
    if kv_memory is not None:
        changes["cache"] = replace(engine.cache, memory=kv_memory)
    if threads is not None:
        changes["threads"] = threads
    return replace(engine, **changes)
