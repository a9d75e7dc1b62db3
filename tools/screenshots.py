#!/usr/bin/env python3
"""Take the pictures in docs/images from a running server that has just started (`inlay serve`).

.venv/bin/python tools/screenshots.py [http://127.0.0.1:8000]

From a server of the tutorial (`inlay serve --adapter bosun=saves/bosun`) it takes that one's alone.
"""

import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.browser import chromium  # noqa: E402

IMAGES = ROOT / "docs" / "images"
LARGEST_BYTES = 300_000


def open_page(browser: Browser, url: str, **options: Any) -> Page:
    """A fresh visitor's start screen."""
    page = browser.new_context(device_scale_factor=2, **options).new_page()
    page.goto(url)
    page.locator(".card").first.wait_for()
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


def take_adapter(page: Page) -> None:
    """The same question to the model and to its adapter."""
    question = "What is the definition of suitcase?"
    for number, name in enumerate(("inlay-demo", "bosun")):
        page.get_by_label("Who answers").select_option(label=name)
        page.fill("#composer", question)
        page.press("#composer", "Enter")
        page.locator(".figures").nth(number).wait_for(timeout=120_000)
    take(page, "finetune-chat")


def main(url: str) -> None:
    """The start screen, a document asked twice with its inside, and the same on a phone."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"]
        )
        page = open_page(browser, url, viewport={"width": 1100, "height": 800})
        if page.locator("#choice").count():
            take_adapter(page)
            return
        take(page, "chat")
        ask(page, ".card.wide")
        ask(page, ".again-document")
        page.click(".turn:last-child [aria-expanded]")
        take(page, "chat-inside")
        phone = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}
        page = open_page(browser, url, color_scheme="dark", **phone)
        ask(page, ".card >> nth=0")
        ask(page, ".chips .chip >> nth=2")
        take(page, "chat-phone")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
