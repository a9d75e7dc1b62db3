"""`inlay chat`: a conversation in the terminal."""

from collections.abc import Coroutine, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Annotated, Any

import typer

from inlay.serve.commands.options import (
    Context,
    Device,
    KvMemory,
    Model,
    Set,
    Threads,
    WeightFormat,
)

if TYPE_CHECKING:
    from inlay.engine.config import EngineConfig
    from inlay.serve.chat.backends import Backend
    from inlay.serve.chat.conversation import Conversation


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
    kv_memory: KvMemory = None,
    threads: Threads = None,
    assignments: Set = None,
) -> None:
    """Chat with a model in the terminal. /help there lists the commands.

    Without a terminal, every line of standard input is a message.
    """
    from inlay.serve.chat.conversation import Conversation

    conversation = Conversation(system=system)
    if url is not None:
        hold_chat(_connect(url, api_key, model), conversation)
        return
    from inlay.serve.commands.local import local_engine_config

    config = local_engine_config(
        model=model,
        device=device,
        weight_format=weight_format,
        context=context,
        kv_memory=kv_memory,
        threads=threads,
        assignments=assignments,
    )
    hold_chat(start_backends(config), conversation)


def hold_chat(
    start: "Coroutine[Any, Any, Mapping[str, Backend]]", conversation: "Conversation"
) -> None:
    """Chat in the terminal with backends, each of which answers every message; then end them.

    Args:
        start: gives the backends by what stands above their answers.
        conversation: what each begins with.
    """
    from inlay.serve.chat.session import LoopThread, Session, converse
    from inlay.serve.chat.terminal import Terminal

    terminal = Terminal()
    runner = LoopThread()
    backends = runner.run(start)
    sessions = [
        Session(backend, terminal, runner, conversation=deepcopy(conversation), title=title)
        for title, backend in backends.items()
    ]
    try:
        if terminal.interactive:
            _say("/help lists the commands")
        converse(terminal, sessions)
    finally:
        for backend in backends.values():
            runner.run(backend.close())
        runner.stop()
    if any(session.failed for session in sessions) and not terminal.interactive:
        raise typer.Exit(1)


async def _connect(url: str, api_key: str | None, model: str | None) -> "Mapping[str, Backend]":
    from inlay.serve.chat.backends import ServerBackend
    from inlay.serve.openai_client import OpenAIClient

    client = OpenAIClient(url, api_key=api_key)
    try:
        backend = ServerBackend(client, model or await client.first_model())
    except BaseException:
        await client.close()
        raise
    _say(backend.title)
    return {"": backend}


async def start_backends(
    config: "EngineConfig", models: "Mapping[str, str | None] | None" = None
) -> "Mapping[str, Backend]":
    """An engine of our own, and what it answers as.

    Args:
        config: of the engine.
        models: what stands above the answers of each, and its name, None: the model itself; by
            default the model alone.
    """
    from inlay.serve.chat.backends import LocalBackend
    from inlay.serve.local_engine import start_local_engine

    engine = await start_local_engine(config, _say, chats=True)
    _say(engine.title)
    if engine.is_demo:
        _say(
            "This is Inlay's tiny demonstration model: it defines English words. "
            "For a real model: inlay chat smollm2, inlay chat org/name or inlay chat DIRECTORY"
        )
    named = {"": None} if models is None else models
    return {title: LocalBackend(engine, model) for title, model in named.items()}


def _say(text: str) -> None:
    """A line that is not part of the conversation."""
    typer.echo(text, err=True)
