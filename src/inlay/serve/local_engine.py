"""An engine for one command: model, process and `Service`, without a server."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from inlay.core.errors import UnsupportedModelError
from inlay.engine.client import EngineClient
from inlay.engine.config import EngineConfig
from inlay.models.source import resolve_model
from inlay.models.text import Text
from inlay.serve.config import ServeConfig
from inlay.serve.generation_config import sampling_defaults
from inlay.serve.rate_line import RateLine
from inlay.serve.service import Service


@dataclass(frozen=True)
class LocalEngine:
    """A running engine and the service on top of it."""

    client: EngineClient
    service: Service
    is_demo: bool

    @property
    def title(self) -> str:
        """One line that says what is running."""
        info = self.client.info
        return (
            f"{self.service.name}: {info.architecture}, {info.parameters / 1e6:.1f} M parameters, "
            f"{info.weight_format}, {info.device} ({info.isa}), context "
            f"{info.max_context_tokens}, loaded in {info.load_s:.1f} s"
        )

    async def close(self) -> None:
        """End the engine's process."""
        await self.client.aclose()


async def start_local_engine(
    config: EngineConfig, say: Callable[[str], None] = lambda text: None, *, chats: bool = False
) -> LocalEngine:
    """Find the model, start its engine, wait until it is ready.

    Args:
        say: told what is going on, for a progress line.
        chats: refuse a model without a chat template before its engine starts.

    Raises:
        UnsupportedModelError: it cannot chat.
        InlayError: no such model, or the engine cannot run it.
    """
    progress = RateLine(f"fetching {config.model}", say)
    source = resolve_model(
        config.model,
        weight_format=config.weight_format,
        offline=config.offline,
        progress=progress,
    )
    text = Text.load(source.directory)
    if chats and text.chat_template is None:
        raise UnsupportedModelError(
            f"{source.name} has no chat template, so it cannot chat: continue texts with "
            f"`inlay generate {config.model or ''} --raw`, or add chat_template.jinja to the "
            "model's directory"
        )
    say(f"loading {source.name} ...")
    weight_format = source.weight_format(config.weight_format)
    client = await EngineClient.start(
        replace(config, model=str(source.directory), weight_format=weight_format)
    )
    service = Service(
        client,
        text,
        ServeConfig(engine=config),
        defaults=sampling_defaults(source.directory),
        model_name=source.name,
    )
    return LocalEngine(client=client, service=service, is_demo=source.is_demo)
