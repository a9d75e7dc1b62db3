"""A visitor of the pages: a headless browser, and tabs that keep account of what goes wrong."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

from tests.support.browser import chromium


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser without a window. What tests expect of its pages they wait for."""
    expect.set_options(timeout=30_000)  # 5 s are few where a browser shares a processor
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(),
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        yield browser
        browser.close()


class Visitor:
    """A browser tab that keeps account of everything that goes wrong in it."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.wrong: list[str] = []
        self.requests: list[str] = []
        self.url = url
        self.page = context.new_page()
        self.page.set_default_timeout(30_000)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("requestfailed", lambda request: self.wrong.append(f"failed: {request.url}"))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("websocket", lambda socket: self.requests.append(socket.url))
        self.page.on("response", self._check_status)
        self.page.on("console", self._check_message)

    def _check_status(self, response: object) -> None:
        status, url = response.status, response.url  # type: ignore[attr-defined]
        if status >= 400:
            self.wrong.append(f"{status}: {url}")

    def _check_message(self, message: object) -> None:
        kind, text = message.type, message.text  # type: ignore[attr-defined]
        if kind in ("error", "warning"):
            self.wrong.append(f"console {kind}: {text}")

    def external(self) -> list[str]:
        """Requests to anybody else."""
        own = (self.url, self.url.replace("http", "ws", 1), "data:")
        return [url for url in self.requests if not url.startswith(own)]
