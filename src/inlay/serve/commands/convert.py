"""`inlay convert`: a model's files in another form, for a quicker start or for other programs."""

from typing import Annotated

import typer


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="A model directory, a *.gguf file, or org/name\\[@revision]\\[:QUANT] on the "
            "Hugging Face hub, which is fetched first.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(metavar="DST", help="A new or empty directory.", show_default=False),
    ],
    experts: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Of the routed experts, where nearly all weights of such models are: int4:g32, "
            "int4:g64, int4:g128, uint4:g32, int8, int8:g32, mxfp4, fp8:g128, bf16, float32.",
            show_default="int4:g32",
        ),
    ] = None,
    rest: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT",
            help="Of all other matrices: the same names. The router of experts keeps floats. "
            "--experts auto --rest auto keeps what the files have.",
            show_default="bf16",
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="packed|bf16",
            help="packed: for inlay serve, which maps it and starts at once. bf16: an ordinary "
            "directory of safetensors, for transformers and other programs.",
        ),
    ] = "packed",
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="CPU threads.", show_default="the physical cores"),
    ] = None,
) -> None:
    """Write a model in another form.

    Never needed before inlay serve, which reads what is published; packed weights
    start without being quantised again. Takes little memory, however large the
    model. Whatever ends it, the same command goes on where it was.
    """
    from functools import partial
    from pathlib import Path

    from inlay.kernels import set_num_threads
    from inlay.models.conversion.convert import convert as convert_model
    from inlay.models.source import resolve_model
    from inlay.serve.rate_line import RateLine

    weight_format = _weight_format(to, experts, rest)
    say = partial(typer.echo, err=True)
    found = resolve_model(source, weight_format=None, progress=RateLine(f"fetching {source}", say))
    directory = Path(target).expanduser()
    if threads is not None:
        set_num_threads(threads)
    try:
        convert_model(
            found.directory,
            directory,
            to="bf16" if to == "bf16" else "packed",
            weight_format=weight_format,
            threads=threads,
            progress=RateLine(f"converting {source}", say),
            say=say,
        )
    except KeyboardInterrupt:
        say("interrupted: the same command goes on where it was")
        raise
    typer.echo(f"{directory} is ready")


def _weight_format(to: str, experts: str | None, rest: str | None) -> str:
    """What `--experts` and `--rest` are together.

    Raises:
        ConfigError: a choice that there is not.
    """
    from inlay.core.errors import ConfigError
    from inlay.models.formats import WEIGHT_FORMATS

    if to not in ("packed", "bf16"):
        raise ConfigError(f"--to {to}: must be packed or bf16")
    if to == "bf16" and (experts or rest):
        raise ConfigError("--to bf16 makes everything bfloat16: leave --experts and --rest out")
    experts, rest = experts or "int4:g32", rest or "bfloat16"
    if experts == rest == "auto":
        return "auto"
    for option, name in (("--experts", experts), ("--rest", rest)):
        if name == "auto":
            raise ConfigError(f"{option} auto is for both: --experts auto --rest auto")
        if name not in WEIGHT_FORMATS:
            raise ConfigError(f"{option} {name}: must be one of {', '.join(WEIGHT_FORMATS)}")
    return f"{experts}+{rest}"
