"""`inlay chat`: a conversation in the terminal."""

from typing import TYPE_CHECKING, Annotated

import typer

from inlay.serve.commands.options import Context, Device, Model, Set, Threads, WeightFormat

if TYPE_CHECKING:
    from inlay.engine.config import EngineConfig
    from inlay.serve.chat.backends import Backend


def chat(
    model: Model = None,
    url: Annotated[
        str | None,
        typer.Option(help="Chat with a running server instead.", show_default="own engine"),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="The server's key, with --url.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    device: Device = "auto",
    weight_format: WeightFormat = "auto",
    context: Context = None,
    threads: Threads = None,
    assignments: Set = None,
) -> None:
    """Chat with a model in the terminal. /help there lists the commands.

    Without a terminal, every line of standard input is a message.
    """
    from inlay.serve.chat.session import LoopThread, Session
    from inlay.serve.chat.terminal import Terminal

    terminal = Terminal()
    runner = LoopThread()
    if url is not None:
        backend = runner.run(_connect(url, api_key, model))
    else:
        from inlay.serve.commands.local import local_engine_config

        config = local_engine_config(
            model=model,
            device=device,
            weight_format=weight_format,
            context=context,
            threads=threads,
            assignments=assignments,
        )
        backend = runner.run(_start(config))
    try:
        if terminal.interactive:
            _say("/help lists the commands")
        session = Session(backend, terminal, runner)
        session.conversation.system = system
        session.run()
    finally:
        runner.run(backend.close())
        runner.stop()
    if session.failed and not terminal.interactive:
        raise typer.Exit(1)


async def _connect(url: str, api_key: str | None, model: str | None) -> "Backend":
    from inlay.serve.chat.backends import ServerBackend
    from inlay.serve.openai_client import OpenAIClient

    client = OpenAIClient(url, api_key=api_key)
    try:
        backend = ServerBackend(client, model or await client.first_model())
    except BaseException:
        await client.close()
        raise
    _say(backend.title)
    return backend


async def _start(config: "EngineConfig") -> "Backend":
    from inlay.serve.chat.backends import LocalBackend
    from inlay.serve.local_engine import start_local_engine

    engine = await start_local_engine(config, _say, chats=True)
    _say(engine.title)
    if engine.is_demo:
        _say(
            "This is Inlay's tiny demonstration model: it defines English words. "
            "For a real model: inlay chat DIRECTORY or inlay chat org/name"
        )
    return LocalBackend(engine)


def _say(text: str) -> None:
    """A line that is not part of the conversation."""
    typer.echo(text, err=True)
