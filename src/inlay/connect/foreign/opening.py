"""Waits for a foreign engine, and finds out what it is."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from inlay.connect.foreign.about import About, check_tokenizer
from inlay.connect.foreign.dialect import Dialect
from inlay.connect.foreign.http import EngineHttp
from inlay.connect.foreign.setup import ProxySetup
from inlay.connect.foreign.sglang import Sglang, is_sglang
from inlay.connect.foreign.vllm import Vllm
from inlay.core.errors import ConfigError, EndpointError, EngineDiedError, InlayError

log = logging.getLogger(__name__)

_ASK_S = 5.0
_AGAIN_S = 1.0
_SAY_S = 10.0
_LEAST_BLOCK = 16

_DIALECTS: dict[str, Callable[[], Dialect]] = {"vllm": Vllm, "sglang": Sglang}


async def open_engine(setup: ProxySetup, http: EngineHttp) -> tuple[Dialect, About]:
    """Wait until an engine answers, and find out what it is.

    Raises:
        InlayError: it is not what it should be.
    """
    await _wait_ready(http)
    engine = setup.engine
    kind = engine.kind
    if kind == "auto":
        kind = "sglang" if await is_sglang(http) else "vllm"
    dialect = _DIALECTS[kind]()
    model = Path(setup.model)
    try:
        facts = await dialect.facts(http, engine)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InlayError):
            raise
        raise ConfigError(
            f"{http.url} does not answer as {kind} does ({error!r}): set kind to what it is"
        ) from None
    await check_tokenizer(http, facts, model)
    size = setup.page_tokens or -(-_LEAST_BLOCK // facts.block_tokens) * facts.block_tokens
    source = facts.source
    log.info(
        "serves %s of %s %s at %s, %s",
        facts.model,
        kind,
        facts.version,
        http.url,
        "which publishes no KV events" if source is None else f"KV events at {source.events}",
    )
    return dialect, About(dialect, facts, model, setup.secret, size)


async def _wait_ready(http: EngineHttp) -> None:
    loop = asyncio.get_running_loop()
    said_s = -_SAY_S
    while True:
        try:
            await http.text("/health", _ASK_S)
        except (EndpointError, EngineDiedError) as error:
            if loop.time() - said_s >= _SAY_S:
                said_s = loop.time()
                log.info("waits for the engine: %s", error)
            await asyncio.sleep(_AGAIN_S)
        else:
            return
