"""The chat page in headless Chromium, on a real server with a tiny random model."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.server import RunningServer, running_server
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter
from tests.support.visitor import Visitor, launched

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]

LAYERS, EXPERTS, CONTEXT_TOKENS = 3, 8, 32768
API_KEY = "open-sesame"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It knows no end of text: an answer is over when it is cut or stopped."""
    directory = make_tiny_model(
        tmp_path_factory.mktemp("page") / "tiny",
        num_hidden_layers=LAYERS,
        num_experts=EXPERTS,
        max_position_embeddings=CONTEXT_TOKENS,
        eos_token_id=...,
    )
    (directory / "generation_config.json").write_text("{}")
    tokenizer = directory / "tokenizer_config.json"
    settings = json.loads(tokenizer.read_text())
    tokenizer.write_text(json.dumps(settings | {"eos_token": None}))
    return directory


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[RunningServer]:
    with running_server(model, page=True) as server:
        yield server


@pytest.fixture(scope="module")
def url(server: RunningServer) -> str:
    return server.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Page]:
    """The start screen in a fresh browser; afterwards nothing may have gone wrong."""
    context = browser.new_context(viewport={"width": 1100, "height": 780})
    visitor = Visitor(context, url)
    visitor.page.goto(url)
    expect(visitor.page.locator(".card")).to_have_count(4)
    yield visitor.page
    assert visitor.wrong == []
    assert visitor.external() == []
    context.close()


def set_up(page: Page, **values: str) -> None:
    """Fill fields of the settings drawer by their label."""
    page.get_by_role("button", name="Settings", exact=True).click()
    for label, value in values.items():
        field = page.locator("#settings label", has_text=label.replace("_", " "))
        field.locator("input, textarea").fill(value)
    page.wait_for_timeout(250)  # the browser sends inputs in bunches
    page.get_by_role("button", name="Close settings").click()


def say(page: Page, text: str) -> None:
    page.locator("#composer").fill(text)
    page.locator("#composer").press("Enter")


def complete(page: Page, number: int = 1) -> Locator:
    """Wait for the figures under answer `number`; gives its turn."""
    turn = page.locator(".turn").nth(number - 1)
    expect(turn.locator(".figures")).to_be_visible(timeout=60_000)
    return turn


def cached(turn: Locator) -> tuple[int, int]:
    """Cached tokens and prompt tokens under an answer."""
    shown = turn.locator('[data-figure="cached"] b').inner_text()
    match = re.fullmatch(r"([\d,]+) of ([\d,]+) tokens", shown)
    assert match, shown
    return int(match[1].replace(",", "")), int(match[2].replace(",", ""))


def test_the_start_screen_names_the_model_and_offers_prompts(visit: Page, model: Path) -> None:
    assert visit.title() == "Inlay"
    expect(visit.locator(".subtitle")).to_contain_text(model.name)
    expect(visit.locator(".banner")).to_have_count(0)  # of the demo model alone
    expect(visit.locator(".status")).to_have_text("idle")
    expect(visit.locator("footer .figures-live")).to_contain_text("pages in use")


def test_a_clicked_prompt_streams_an_answer_with_figures(visit: Page) -> None:
    set_up(visit, Max_tokens="1500", Seed="7")
    visit.evaluate(
        """() => {
            window.lengths = new Set();
            const note = () => {
                const answer = document.querySelector(".turn .markdown");
                if (answer && !answer.querySelector(".waiting"))
                    window.lengths.add(answer.textContent.length);
            };
            const how = { childList: true, subtree: true, characterData: true };
            new MutationObserver(note).observe(document.body, how);
        }"""
    )
    visit.locator(".card").first.click()
    turn = complete(visit)
    assert visit.evaluate("window.lengths.size") >= 3, "the answer did not grow step by step"
    labels = turn.locator("[data-figure] span").all_inner_texts()
    assert labels == ["TTFT", "prefill", "decode", "cached"]
    expect(turn.locator(".figures")).to_contain_text("cut at the limit")
    expect(visit.locator("#composer")).to_be_focused()


def test_stop_stops_the_engine_too(visit: Page, server: RunningServer) -> None:
    before = server.gauges()["inlay_generated_tokens_total"]
    say(visit, "Tell me everything.")
    expect(visit.locator(".turn .markdown")).to_contain_text(re.compile(r"\S{3}"))
    visit.get_by_role("button", name="Stop").click()
    turn = complete(visit)
    expect(turn.locator(".figures")).to_contain_text("stopped")
    expect(visit.locator(".status")).to_have_text("idle")
    server.wait_idle(timeout_s=30)
    say(visit, "And now?")  # the page goes on
    expect(visit.locator(".turn").nth(1).locator(".bubble")).to_have_text("And now?")
    visit.get_by_role("button", name="New chat").click()  # cancels as well
    expect(visit.locator(".card")).to_have_count(4)
    after = server.wait_idle(timeout_s=30)
    assert after["inlay_generated_tokens_total"] - before < 0.9 * CONTEXT_TOKENS, "one went on"


def test_leaving_the_page_stops_the_answer(browser: Browser, server: RunningServer) -> None:
    before = server.gauges()["inlay_generated_tokens_total"]
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.url)
    expect(page.locator(".card")).to_have_count(4)
    say(page, "Tell me everything.")
    expect(page.locator(".turn .markdown")).to_contain_text(re.compile(r"\S{3}"))
    context.close()
    wrote = server.wait_idle(timeout_s=30)["inlay_generated_tokens_total"] - before
    assert 0 < wrote < 0.9 * CONTEXT_TOKENS, "the answer went on to its end"


def test_a_document_asked_twice_comes_from_the_cache(visit: Page, url: str) -> None:
    httpx.post(f"{url}/reset_prefix_cache").raise_for_status()
    set_up(visit, Max_tokens="8")
    visit.locator(".card.wide").click()
    assert cached(complete(visit, 1))[0] == 0
    visit.locator(".again-document").click()
    second = complete(visit, 2)
    hit, prompt = cached(second)
    assert prompt > 1500
    assert hit > 0.9 * prompt
    expect(second.locator(".gain")).to_contain_text("came from the cache")
    expect(visit.locator("details.document")).to_have_count(2)


def test_inside_opens_and_closes(visit: Page) -> None:
    set_up(visit, Max_tokens="20")
    say(visit, "Hello there")
    turn = complete(visit)
    turn.get_by_role("button", name="inside").click()
    inside = turn.locator("div.inside")
    expect(inside.locator("svg.heat rect")).to_have_count(LAYERS * EXPERTS)
    expect(inside.locator(".timeline i")).to_have_count(3)
    expect(inside).to_contain_text("preemptions")
    chosen = [
        int(count)
        for title in inside.locator("svg.heat title").all_text_contents()
        for count in re.findall(r"chosen ([\d]+)×", title.replace(",", ""))
    ]
    assert sum(chosen) > 0
    turn.get_by_role("button", name="inside").click()
    expect(inside).to_have_count(0)


def test_regenerate_repeats_the_question(visit: Page) -> None:
    set_up(visit, Max_tokens="12", Temperature="0")
    say(visit, "Say it again")
    first = complete(visit).locator(".markdown").inner_text()
    visit.evaluate("document.querySelector('.answer').dataset.old = 'yes'")
    visit.get_by_role("button", name="Regenerate").click()
    expect(visit.locator(".answer[data-old]")).to_have_count(0)
    expect(visit.locator(".turn")).to_have_count(1)
    assert complete(visit).locator(".markdown").inner_text() == first


def test_a_question_too_long_is_explained(visit: Page) -> None:
    say(visit, "lantern " * CONTEXT_TOKENS)
    notice = visit.get_by_role("alert")
    expect(notice).to_contain_text("Too long for this model")
    expect(notice).to_contain_text(str(CONTEXT_TOKENS))
    notice.get_by_role("button", name="New chat").click()
    expect(visit.locator(".card")).to_have_count(4)


def test_light_and_dark_are_remembered(visit: Page) -> None:
    expect(visit.locator("body")).to_have_class(re.compile("body--light"))
    visit.get_by_role("button", name="Light or dark").click()
    expect(visit.locator("body")).to_have_class(re.compile("body--dark"))
    visit.reload()
    expect(visit.locator(".card")).to_have_count(4)
    expect(visit.locator("body")).to_have_class(re.compile("body--dark"))


def test_on_a_phone(browser: Browser, url: str) -> None:
    context = browser.new_context(
        viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True
    )
    visitor = Visitor(context, url)
    page = visitor.page
    page.goto(url)
    expect(page.locator(".card")).to_have_count(4)
    set_up(page, Max_tokens="8")
    page.locator(".card").first.tap()
    turn = complete(page)
    turn.get_by_role("button", name="inside").tap()
    expect(turn.locator("svg.heat")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert page.evaluate("document.getElementById('thread').scrollWidth") <= 360
    expect(page.locator("#composer")).to_be_in_viewport()
    expect(page.get_by_role("button", name="Send")).to_be_in_viewport()
    assert visitor.wrong == []
    context.close()


def test_the_page_leaves_all_other_paths_to_the_api(url: str) -> None:
    assert httpx.get(f"{url}/v1/models").json()["object"] == "list"
    missing = httpx.get(f"{url}/v1/nothing")
    assert missing.status_code == 404
    assert "error" in missing.json()
    policy = httpx.get(url).headers["content-security-policy"]
    assert "default-src 'self'" in policy


def test_the_demo_model_says_what_it_is(browser: Browser) -> None:
    with running_server(None, page=True) as server:
        context = browser.new_context(color_scheme="dark")
        visitor = Visitor(context, server.url)
        page = visitor.page
        page.goto(server.url)
        banner = page.get_by_role("note")
        expect(banner).to_contain_text("trained on WordNet")
        expect(banner).to_contain_text("inlay serve Qwen/Qwen3-30B-A3B")
        page.get_by_text("Define lantern.").click()
        expect(complete(page, 1).locator(".markdown")).to_contain_text(re.compile(r"\w{3}"))
        page.get_by_role("button", name="One long document, two questions").click()
        complete(page, 2)
        page.locator(".again-document").click()
        hit, prompt = cached(complete(page, 3))
        assert prompt >= 1500
        assert hit > 0.95 * prompt
        assert visitor.wrong == []
        assert visitor.external() == []
        context.close()


@pytest.fixture(scope="module")
def strict(model: Path) -> Iterator[RunningServer]:
    """A server with a key and room for two requests, one of them waiting."""
    scheduler = {"max_running": 1, "max_waiting": 1}
    with running_server(
        model, page=True, api_key=API_KEY, engine={"scheduler": scheduler}
    ) as server:
        yield server


def unlock(page: Page, server: RunningServer) -> None:
    page.goto(server.url)
    page.get_by_label("API key").fill(API_KEY)
    page.get_by_label("API key").press("Enter")
    expect(page.locator(".card")).to_have_count(4)


def test_with_an_api_key_the_page_asks_for_it(browser: Browser, strict: RunningServer) -> None:
    context = browser.new_context()
    visitor = Visitor(context, strict.url)
    page = visitor.page
    page.goto(strict.url)
    field = page.get_by_label("API key")
    expect(field).to_be_visible()
    expect(page.locator("#composer")).to_have_count(0)
    field.fill("a guess")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("This is not the key.")
    expect(page.locator("#composer")).to_have_count(0)
    unlock(page, strict)
    page.reload()  # the tab remembers
    expect(page.locator(".card")).to_have_count(4)
    other = context.new_page()  # another tab does not
    other.goto(strict.url)
    expect(other.get_by_label("API key")).to_be_visible()
    assert visitor.wrong == []
    assert visitor.external() == []
    context.close()


def test_a_busy_server_and_a_lost_engine_are_explained(
    browser: Browser, strict: RunningServer
) -> None:
    context = browser.new_context()
    pages = [context.new_page() for _ in range(3)]
    for page in pages:
        unlock(page, strict)
    first, second, third = pages
    say(first, "Tell me everything.")
    expect(first.locator(".turn .markdown")).to_contain_text(re.compile(r"\S{3}"))
    say(second, "Me too.")
    expect(second.locator(".status")).to_have_text("1 running · 1 waiting")
    say(third, "And me.")
    expect(third.get_by_role("alert")).to_contain_text("The server is busy")
    first.get_by_role("button", name="Stop").click()
    second.get_by_role("button", name="Stop").click()
    third.get_by_role("button", name="Try again").click()
    expect(third.locator(".turn .markdown")).to_contain_text(re.compile(r"\S{3}"))
    os.kill(strict.engine_pid(), signal.SIGKILL)
    expect(third.get_by_role("alert")).to_contain_text("The engine is gone")
    context.close()


@pytest.fixture(scope="module")
def adapted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of two models: its own, and the same with an adapter."""
    adapter = make_adapter(model, tmp_path_factory.mktemp("adapters") / "other")
    engine = {"adapters": [f"other={adapter}"]}
    with running_server(model, page=True, served_model_name=["own"], engine=engine) as server:
        yield server


@pytest.fixture
def tuned(browser: Browser, adapted: RunningServer) -> Iterator[Page]:
    """Its start screen in a fresh browser."""
    context = browser.new_context(viewport={"width": 1100, "height": 780})
    visitor = Visitor(context, adapted.url)
    visitor.page.goto(adapted.url)
    expect(visitor.page.locator(".card")).to_have_count(4)
    yield visitor.page
    assert visitor.wrong == []
    assert visitor.external() == []
    context.close()


def columns(page: Page, number: int = 1) -> tuple[Locator, Locator]:
    """Both answers to question `number`."""
    sides = page.locator(".turn").nth(number - 1).locator(".side")
    expect(sides).to_have_count(2)
    return sides.nth(0), sides.nth(1)


def begun(side: Locator) -> None:
    expect(side.locator(".markdown")).to_contain_text(re.compile(r"\S{3}"), timeout=60_000)


def stopped(side: Locator) -> None:
    expect(side.locator(".figures")).to_contain_text("stopped", timeout=60_000)


def both_complete(page: Page, number: int = 1) -> tuple[Locator, Locator]:
    sides = columns(page, number)
    for side in sides:
        expect(side.locator(".figures")).to_be_visible(timeout=60_000)
    return sides


def area(element: Locator) -> dict[str, float]:
    """Where it is in the window."""
    found: dict[str, float] = element.evaluate("(one) => one.getBoundingClientRect().toJSON()")
    return found


SIDE_BY_SIDE = "Two models side by side"


def test_adapters_answer_by_choice(tuned: Page) -> None:
    set_up(tuned, Max_tokens="8", Seed="1")
    say(tuned, "To be")
    own = complete(tuned)
    expect(own.locator(".who")).to_have_text("own")
    said = own.locator(".markdown").inner_text()
    tuned.get_by_role("button", name="New chat").click()
    tuned.get_by_label("Who answers", exact=True).select_option(label="other")
    say(tuned, "To be")
    other = complete(tuned)
    expect(other.locator(".who")).to_have_text("other")
    assert other.locator(".markdown").inner_text() != said


def test_two_models_answer_side_by_side(tuned: Page) -> None:
    set_up(tuned, Max_tokens="8", Seed="1")
    say(tuned, "Before")  # one answers, and both go on from there
    expect(complete(tuned).locator(".side")).to_have_count(1)
    tuned.get_by_role("button", name=SIDE_BY_SIDE).click()
    say(tuned, "To be")
    own, other = both_complete(tuned, 2)
    expect(own.get_by_role("group", name="own answers")).to_be_visible()
    expect(other.get_by_role("group", name="other answers")).to_be_visible()
    said = [side.locator(".markdown").inner_text() for side in (own, other)]
    assert said[0] != said[1]
    prompts = [cached(side)[1] for side in (own, other)]
    assert prompts[0] == prompts[1] > 8
    say(tuned, "Or not")
    after = [cached(side)[1] for side in both_complete(tuned, 3)]
    assert min(after) > prompts[0] + 8, "a side forgot its own answer"
    tuned.get_by_role("button", name=SIDE_BY_SIDE).click()
    say(tuned, "Alone")
    expect(complete(tuned, 4).locator(".side")).to_have_count(1)
    expect(tuned.get_by_role("button", name="Regenerate").locator("visible=true")).to_have_count(1)


def test_each_side_is_stopped_and_asked_again_by_itself(
    tuned: Page, adapted: RunningServer
) -> None:
    before = adapted.gauges()["inlay_generated_tokens_total"]
    tuned.get_by_role("button", name=SIDE_BY_SIDE).click()
    say(tuned, "Tell me everything.")
    own, other = columns(tuned)
    for side in (own, other):
        begun(side)
    tuned.get_by_role("button", name="Stop other").click()
    stopped(other)
    expect(own.locator(".figures")).to_have_count(0)  # it goes on
    said = other.locator(".markdown").inner_text()
    other.get_by_role("button", name="Regenerate").click()
    expect(other.locator(".figures")).to_have_count(0)
    begun(other)
    tuned.locator("#composer").press("Escape")
    for side in (own, other):
        stopped(side)
    after = adapted.wait_idle(timeout_s=30)
    assert after["inlay_generated_tokens_total"] - before < 0.9 * CONTEXT_TOKENS, "one went on"
    assert other.locator(".markdown").inner_text() != said  # drawn afresh
    expect(tuned.get_by_role("button", name="Send")).to_be_visible()


def test_the_choice_of_two_is_remembered(tuned: Page) -> None:
    tuned.get_by_role("button", name=SIDE_BY_SIDE).click()
    first = tuned.get_by_label("Who answers", exact=True)
    second = tuned.get_by_label("Who answers, too")
    first.select_option(label="other")
    second.select_option(label="own")
    tuned.wait_for_function("localStorage['inlay-who'] === '[\"other\",\"own\",true]'")
    tuned.reload()
    pressed = tuned.get_by_role("button", name=SIDE_BY_SIDE, pressed=True)
    expect(pressed).to_be_visible()
    expect(first).to_have_value("1")
    expect(second).to_have_value("0")
    tuned.evaluate("localStorage['inlay-who'] = '[\"other\",\"gone\",true]'")
    tuned.reload()
    expect(tuned.locator(".status")).to_have_text("idle")
    expect(pressed).to_have_count(0)
    expect(first).to_have_value("0")
    expect(second).to_be_hidden()


def test_two_columns_lie_one_below_the_other_on_a_phone(tuned: Page) -> None:
    set_up(tuned, Max_tokens="8")
    tuned.get_by_role("button", name=SIDE_BY_SIDE).click()
    say(tuned, "To be")
    own, other = both_complete(tuned)
    left, right = area(own), area(other)
    assert left["right"] <= right["left"]
    tuned.set_viewport_size({"width": 360, "height": 740})
    upper, lower = area(own), area(other)
    assert upper["left"] == lower["left"]
    assert upper["bottom"] <= lower["top"]
    assert tuned.evaluate("document.documentElement.scrollWidth") <= 360
    assert tuned.evaluate("document.getElementById('thread').scrollWidth") <= 360
    expect(tuned.get_by_label("Who answers, too")).to_be_in_viewport()


def test_an_error_is_one_sides_own(
    tuned: Page, adapted: RunningServer, model: Path, tmp_path: Path
) -> None:
    httpx.post(
        f"{adapted.url}/v1/load_lora_adapter",
        json={"lora_name": "brief", "lora_path": str(make_adapter(model, tmp_path / "brief"))},
    ).raise_for_status()
    tuned.reload()
    set_up(tuned, Max_tokens="8")
    tuned.get_by_role("button", name=SIDE_BY_SIDE).click()
    tuned.get_by_label("Who answers, too").select_option(label="brief")
    tuned.wait_for_function("localStorage['inlay-who'].includes('brief')")
    httpx.post(
        f"{adapted.url}/v1/unload_lora_adapter", json={"lora_name": "brief"}
    ).raise_for_status()
    say(tuned, "To be")
    own, brief = columns(tuned)
    expect(brief.get_by_role("alert")).to_contain_text("'brief' does not exist here")
    expect(own.locator(".figures")).to_be_visible()
    expect(own.get_by_role("alert")).to_have_count(0)
    tuned.get_by_label("Who answers, too").select_option(label="other")
    tuned.wait_for_function("localStorage['inlay-who'].includes('other')")
    say(tuned, "Not to be")  # both go on
    both_complete(tuned, 2)
