"""The page of `inlay simulate` in headless Chromium: it stands alone and answers the mouse."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.test_cli_errors import inlay
from tests.support.tree import ROOT
from tests.support.visitor import Visitor, launched

pytestmark = pytest.mark.browser

TRACE = ROOT / "benchmarks/traces/mooncake_conversation.jsonl.gz"
SCENARIOS = ROOT / "examples/simulations"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


def test_two_scenarios_side_by_side(browser: Browser, tmp_path: Path) -> None:
    file, plot = tmp_path / "runs.html", tmp_path / "runs.svg"
    scenarios = [str(SCENARIOS / f"{name}.toml") for name in ("one_pool", "prefill_decode")]
    done = inlay(
        "simulate", *scenarios, "--trace", str(TRACE), "--until", "1min",
        "--html", str(file), "--plot", str(plot), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    names = [run["run"] for run in json.loads(done.stdout)]
    assert names == ["one_pool, inlay", "prefill_decode, inlay"]
    assert all(name in plot.read_text() for name in names)

    context = browser.new_context(viewport={"width": 1250, "height": 1400})
    visitor = Visitor(context, file.as_uri())
    visitor.page.goto(file.as_uri())
    plots = visitor.page.locator("#plots svg.marks")
    expect(plots).to_have_count(7)  # nothing was refused
    expect(visitor.page.locator("table")).to_contain_text("TTFT mean")

    # A run of the legend that is clicked stands out: the other one's curve fades.
    first = plots.first
    curves = first.locator(".mark-line path[aria-roledescription='line mark']")
    expect(curves).to_have_count(2)
    first.locator(".mark-text", has_text=names[0]).locator("text", has_text=names[0]).click()
    faded = first.locator(".mark-symbol path[opacity='0.12']")
    expect(faded.first).to_be_attached()

    # A point says what it is.
    visitor.page.keyboard.press("Escape")
    plots.nth(6).locator("path[aria-roledescription='bar']").first.hover()
    expect(visitor.page.locator("#vg-tooltip-element")).to_contain_text("group")
    assert visitor.wrong == []
    assert visitor.external() == []
    context.close()
