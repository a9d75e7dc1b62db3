"""The chat page and the dashboard as an application.

Imports NiceGUI (more than half a second, 40 MiB), so this module is imported when a browser first
asks for a page.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files

from fastapi import FastAPI, Request
from nicegui import core, ui
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from inlay.serve.config import ServeConfig
from inlay.serve.dashboard.source import StatusSource
from inlay.serve.dashboard.view import DashboardPage
from inlay.serve.page.lock import Lock
from inlay.serve.page.view import ChatPage
from inlay.serve.page.widgets import LOGO
from inlay.serve.service import Service

# The page's own files and nothing else: whatever a model writes, the browser loads nothing from
# outside. Vue compiles templates in the browser, hence 'unsafe-eval'.
_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, kw_only=True)
class _Desk:
    """What a page needs; travels with the request, since NiceGUI's app is one per process."""

    service: Service
    config: ServeConfig
    status: StatusSource


class _PageFiles:
    """NiceGUI's app with our headers, and with the desk in the request's scope."""

    def __init__(self, app: ASGIApp, desk: _Desk) -> None:
        self._app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        scope["inlay_desk"] = self._desk
        await self._app(scope, receive, send_with_headers)


@asynccontextmanager
async def served(
    service: Service, config: ServeConfig, status: StatusSource
) -> AsyncIterator[ASGIApp]:
    """The pages as an application, inside this block.

    NiceGUI is one per process and lives as long as the first block here.
    """
    pages = _PageFiles(core.app, _Desk(service=service, config=config, status=status))
    if core.app.config.has_run_config:
        yield pages
        return
    host = FastAPI()  # which NiceGUI asks for; it answers nothing
    ui.run_with(
        host,
        title="Inlay",
        favicon=LOGO,
        dark=None,
        language="en-US",
        binding_refresh_interval=None,
        reconnect_timeout=20.0,
        tailwind=False,
        show_welcome_message=False,
    )
    async with host.router.lifespan_context(host):
        yield pages


def _read(package: str, name: str) -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _add_head(*styles: str) -> None:
    script = _read("inlay.serve.page", "page.js")
    ui.add_head_html(
        '<meta name="theme-color" content="#faf8f4"><meta name="robots" content="noindex">'
        f"<style>{''.join(styles)}</style><script>{script}</script>"
    )


async def _behind_lock(config: ServeConfig, build: Callable[[], Awaitable[None]]) -> None:
    if config.api_key is None:
        await build()
    else:
        await Lock(config.api_key, build).show()


@ui.page("/")
async def _page(request: Request) -> None:
    desk: _Desk = request.scope["inlay_desk"]
    _add_head(_read("inlay.serve.page", "page.css"))
    await _behind_lock(desk.config, ChatPage(desk.service).build)


@ui.page("/dashboard", title="Inlay dashboard")
async def _dashboard(request: Request) -> None:
    desk: _Desk = request.scope["inlay_desk"]
    _add_head(
        _read("inlay.serve.page", "page.css"), _read("inlay.serve.dashboard", "dashboard.css")
    )
    await _behind_lock(desk.config, DashboardPage(desk.status, desk.service.name).build)
