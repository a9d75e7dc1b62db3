"""`inlay serve`: an OpenAI-compatible server and the chat page."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.options import (
    ApiKey,
    Context,
    Device,
    KvMemory,
    Model,
    Set,
    Threads,
    WeightFormat,
    with_assignments,
    with_engine_options,
)

if TYPE_CHECKING:
    from inlay.serve.config import ServeConfig


def serve(
    model: Model = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8000,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[,NAME]", help="Names that clients use.", show_default="the model's own"
        ),
    ] = None,
    api_key: ApiKey = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A Jinja file to write conversations with.",
            show_default="the model's own template",
        ),
    ] = None,
    tool_parser: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The notation of the model's tool calls, such as hermes, mistral or glm.",
            show_default="recognised by the chat template",
        ),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=DIRECTORY",
            help="A LoRA adapter, which requests choose by its name as their model. May be "
            "repeated.",
            show_default=False,
        ),
    ] = None,
    device: Device = "auto",
    weight_format: WeightFormat = "auto",
    context: Context = None,
    kv_memory: KvMemory = None,
    threads: Threads = None,
    assignments: Set = None,
) -> None:
    """Serve a model over HTTP: the OpenAI API under /v1, pages at / and /dashboard."""
    config = make_config(
        model=model,
        host=host,
        port=port,
        served_model_name=served_model_name,
        api_key=api_key,
        chat_template=chat_template,
        tool_parser=tool_parser,
        adapter=adapter,
        device=device,
        weight_format=weight_format,
        context=context,
        kv_memory=kv_memory,
        threads=threads,
        assignments=assignments,
    )

    from inlay.serve.server import run_server  # after the checks: it imports the web framework

    code = run_server(config)
    raise typer.Exit(code or 0)


def make_config(
    *,
    model: str | None,
    host: str,
    port: int,
    served_model_name: str | None,
    api_key: str | None,
    chat_template: str | None,
    tool_parser: str | None,
    adapter: list[str] | None,
    device: str,
    weight_format: str,
    context: int | None,
    kv_memory: str | None,
    threads: int | None,
    assignments: list[str] | None,
) -> "ServeConfig":
    """The configuration that the command's arguments say. Raises ConfigError."""
    from inlay.serve.config import ServeConfig

    config = ServeConfig()
    engine = with_engine_options(
        config.engine,
        model=model,
        device=device,
        weight_format=weight_format,
        context=context,
        kv_memory=kv_memory,
        threads=threads,
    )
    if adapter is not None:
        engine = replace(engine, adapters=tuple(adapter))
    config = replace(config, host=host, port=port, engine=engine)
    if served_model_name is not None:
        names = tuple(name.strip() for name in served_model_name.split(","))
        config = replace(config, served_model_name=names)
    if api_key is not None:
        config = replace(config, api_key=api_key)
    config = replace(config, chat_template=chat_template, tool_parser=tool_parser)
    return with_assignments(config, assignments)
