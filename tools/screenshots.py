#!/usr/bin/env python3
"""Take the pictures in docs/images from a running server that has just started (`inlay serve`).

.venv/bin/python tools/screenshots [http://127.0.0.1:8000]
"""

import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import chromium  # noqa: E402

IMAGES = ROOT / "docs" / "images"
LARGEST_BYTES = 300_000


def open_page(browser: Browser, url: str, width: int, height: int, scheme: str) -> Page:
    """A fresh visitor's start screen."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, device_scale_factor=2
    )
    page = context.new_page()
    page.emulate_media(color_scheme=scheme)
    page.goto(url)
    page.wait_for_selector(".card.wide")
    page.wait_for_timeout(600)
    return page


def ask(page: Page, selector: str) -> None:
    """Click a prompt and wait for the whole answer."""
    answers = page.locator(".figures").count()
    page.click(selector)
    page.locator(".figures").nth(answers).wait_for(timeout=120_000)


def take(page: Page, name: str) -> None:
    """Save what the page shows."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(700)
    file = IMAGES / f"{name}.png"
    page.screenshot(path=file)
    size_bytes = file.stat().st_size
    print(f"{file.relative_to(ROOT)}: {size_bytes / 1000:.0f} kB")
    assert size_bytes < LARGEST_BYTES, f"{name} is larger than {LARGEST_BYTES} bytes"


def main(url: str) -> None:
    """The start screen, a document asked twice with its inside, and the same on a phone."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = open_page(browser, url, 1100, 780, "light")
        take(page, "chat")
        ask(page, ".card.wide")
        ask(page, ".again-document")
        page.click(".turn:last-child [aria-expanded]")
        take(page, "chat-inside")
        page = open_page(browser, url, 390, 800, "dark")
        ask(page, ".card >> nth=0")
        ask(page, ".chip >> nth=1")
        take(page, "chat-phone")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
