from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from inlay.serve.app import create_app
from inlay.serve.config import ServeConfig
from tests.support.tiny_tokenizers import write_tokenizer
from tests.unit.serve.stand_in import StandInEngine, make_service

Api = Callable[..., AbstractAsyncContextManager[tuple[httpx.AsyncClient, StandInEngine]]]


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(directory)
    return directory


@pytest.fixture
def api(tokenizer_directory: Path) -> Api:
    """Opens a client of an application on a stand-in engine."""

    @asynccontextmanager
    async def make(
        says: str = "Hello there.", directory: Path = tokenizer_directory, **options: object
    ) -> AsyncIterator[tuple[httpx.AsyncClient, StandInEngine]]:
        config = ServeConfig(page=False, **options)  # type: ignore[arg-type]
        service, engine = make_service(directory, config, says)
        transport = httpx.ASGITransport(app=create_app(service, config))
        async with httpx.AsyncClient(transport=transport, base_url="http://inlay") as client:
            yield client, engine

    return make
