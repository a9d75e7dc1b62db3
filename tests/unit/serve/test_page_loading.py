"""When the chat page and the dashboard are loaded: not before a browser asks for one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse

from inlay.serve.page import Pages

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def client_of(pages: Pages) -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette(routes=[pages.mount], lifespan=pages.lifespan)
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://inlay") as client,
    ):
        yield client


@pytest.fixture
def pages() -> Pages:
    nothing = cast(Any, None)
    return Pages(nothing, nothing, nothing)


async def test_pages_are_loaded_once_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, pages: Pages
) -> None:
    told = list[str]()

    @asynccontextmanager
    async def served(*parts: object) -> AsyncIterator[PlainTextResponse]:
        told.append("served")
        yield PlainTextResponse("a page")
        told.append("over")

    def load(name: str) -> SimpleNamespace:
        told.append(name)
        return SimpleNamespace(served=served)

    monkeypatch.setattr("inlay.serve.page.import_module", load)
    async with client_of(pages) as client:
        assert (await client.get("/v1/nothing")).status_code == 404
        assert told == []
        assert (await client.head("/")).status_code == 200
        assert (await client.get("/dashboard")).text == "a page"
        assert told == ["inlay.serve.page.app", "served"]
    assert told[2:] == ["over"]


async def test_a_page_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, pages: Pages, caplog: pytest.LogCaptureFixture
) -> None:
    def load(name: str) -> SimpleNamespace:
        raise ImportError("No module named 'nicegui'")

    monkeypatch.setattr("inlay.serve.page.import_module", load)
    async with client_of(pages) as client:
        for _ in range(2):
            answer = await client.get("/")
            assert answer.status_code == 503
            message = answer.json()["error"]["message"]
            assert message.startswith("the page could not be loaded: No module named 'nicegui'")
    assert "could not be loaded" in caplog.text
