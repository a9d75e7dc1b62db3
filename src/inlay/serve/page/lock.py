"""Asks for the API key, when the server has one: the page is no way round it.

What lies behind is built only after the right key was given. That is remembered on the server for
the browser tab, until the tab is closed.
"""

import asyncio
import hmac
from collections.abc import Awaitable, Callable

from nicegui import app, ui

from inlay.serve.page.widgets import LOGO, box, button, icon, raw, text

_REMEMBERED = "inlay-unlocked-with"
_DELAY_S = 0.5  # after a wrong key


class Lock:
    """A form that calls `on_open` once, after the right key."""

    def __init__(self, api_key: str, on_open: Callable[[], Awaitable[None]]) -> None:
        self._key = api_key
        self._on_open = on_open

    async def show(self) -> None:
        """Open at once if this tab gave the key before; otherwise ask."""
        self._client = ui.context.client
        await self._client.connected()
        if not self._client.has_socket_connection:
            return  # whoever asked for the page never opened it
        if self._matches(app.storage.tab.get(_REMEMBERED)):
            await self._on_open()
            return
        self._box = box("lock")
        with self._box, box("lock-card"):
            raw(LOGO, "mark")
            text("This server has an API key", tag="h1")
            text("Enter the key that the server was started with.", "hint")
            field = "document.getElementById('api-key').value"
            with box("lock-row", tag="form") as form:
                form.on(
                    "submit",
                    self._try,
                    js_handler=f"(e) => {{ e.preventDefault(); emit({field}) }}",
                )
                raw(icon("key"), "notice-icon")
                ui.element("input").props(
                    "id=api-key type=password autocomplete=current-password autofocus "
                    'aria-label="API key" placeholder="API key"'
                )
                button("Open", classes="solid").props("type=submit")
            self._wrong = text("", "wrong").props("role=alert")

    def _matches(self, given: object) -> bool:
        return isinstance(given, str) and hmac.compare_digest(given.encode(), self._key.encode())

    async def _try(self, event: object) -> None:
        given = str(getattr(event, "args", ""))
        if not self._matches(given):
            self._wrong.set_content("")
            await asyncio.sleep(_DELAY_S)
            self._wrong.set_content("This is not the key.")
            return
        app.storage.tab[_REMEMBERED] = given
        self._box.delete()
        with self._client:
            await self._on_open()
