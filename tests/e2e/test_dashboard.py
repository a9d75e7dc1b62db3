"""The dashboard in headless Chromium, on a dispatcher and instances in processes of their own."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from inlay.cluster.status import ClusterStatus
from tests.support.cluster import RunningDispatcher, RunningInstance, ended
from tests.support.deployments import wait_until
from tests.support.server import running_server
from tests.support.visitor import Visitor, launched

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

API_KEY = "open-sesame"
PROMPT = "The lantern on the wall is a lamp whose case keeps the wind from its flame. " * 8
PATIENCE_MS = 20_000


@dataclass
class Running:
    dispatcher: RunningDispatcher
    instances: dict[str, RunningInstance]
    directory: Path

    def ask(self, count: int = 1, *, url: str = "", **headers: str) -> None:
        for i in range(count):
            answer = httpx.post(
                (url or self.dispatcher.url) + "/v1/completions",
                json={"prompt": f"{PROMPT} Question {i}:", "max_tokens": 8, "temperature": 0},
                headers=headers,
                timeout=60,
            )
            assert answer.status_code == 200, answer.text

    def status(self) -> ClusterStatus:
        answer = httpx.get(self.dispatcher.url + "/cluster/status", timeout=30)
        return msgspec.json.decode(answer.content, type=ClusterStatus)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One instance for prompts and one to decode; prompts of five and more blocks are divided."""
    directory = tmp_path_factory.mktemp("dashboard")
    made = {
        name: RunningInstance(name, directory, role=role, exchange="127.0.0.1:0")
        for name, role in (("p0", "prefill"), ("d0", "decode"))
    }
    with ended(*made.values()):
        for one in made.values():
            one.wait_ready()
        dispatcher = RunningDispatcher(
            [one.member for one in made.values()],
            directory,
            slo={"chat": {"ttft_s": 30.0, "itl_s": 20.0}},
            serve={"page": True},
        )
        with ended(dispatcher):
            yield Running(dispatcher, made, directory)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launched() as browser:
        yield browser


@pytest.fixture
def board(browser: Browser, running: Running) -> Iterator[Page]:
    """The dashboard on a laptop's screen; afterwards nothing may have gone wrong."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    visitor = Visitor(context, running.dispatcher.url)
    visitor.page.goto(running.dispatcher.url + "/dashboard")
    expect(visitor.page.locator(".tile")).to_have_count(7, timeout=PATIENCE_MS)
    yield visitor.page
    assert visitor.wrong == []
    assert visitor.external() == []
    context.close()


def tile(page: Page, label: str) -> str:
    return page.locator(".tile", has_text=label).first.locator("b").inner_text()


def row(page: Page, name: str) -> str:
    return page.locator(".panel.wide tbody tr", has_text=name).inner_text()


def test_requests_appear_while_somebody_looks(board: Page, running: Running) -> None:
    assert board.title() == "Inlay dashboard"
    expect(board.locator("header")).to_contain_text("2 of 2 instances ready")
    before = running.status().traffic.requests_total
    running.ask(3)
    expect(board.locator(".picked tbody tr")).to_have_count(before + 3, timeout=PATIENCE_MS)
    expect(board.locator(".charts svg.chart .line.p50")).to_have_count(2)
    assert re.fullmatch(r"[\d.]+ (ms|s)", tile(board, "TTFT p90"))
    assert tile(board, "Within objectives") == "100 %"
    assert "objective 30.00 s" in board.locator(".tile", has_text="TTFT").inner_text()
    for name, role in (("p0", "prefill"), ("d0", "decode")):
        assert role in row(board, name)
        assert re.search(r"\d+ used, \d+ kept of [\d,]+", row(board, name))


def test_the_status_tells_the_same_to_programs(running: Running) -> None:
    running.ask(2)
    status = running.status()
    assert (status.server, status.model) == ("dispatcher", "inlay-demo")
    assert {one.name: (one.role, one.state) for one in status.instances} == {
        "p0": ("prefill", "ready"),
        "d0": ("decode", "ready"),
    }
    (chat,) = status.classes
    assert chat.good == chat.finished >= 2 and chat.itl.count >= 14
    assert status.traffic.hit_tokens["device"] > 0
    assert all(one.measured_ttft_s is not None for one in status.decisions)
    assert status.index is not None and status.index.blocks >= status.index.different_blocks > 0
    split = [one for one in status.decisions if one.outcome == "split"]
    assert split and {(path.source, path.target) for path in status.paths} == {("p0", "d0")}
    (path,) = status.paths
    assert path.size_bytes > 0 and path.lost == 0 and path.last_s is not None
    assert {route.state for route in path.routes} == {"ready"}
    assert sum(route.size_bytes for route in path.routes) > 0
    for one in status.instances:
        assert one.query_tokens > 0 and one.prefill_tokens_per_s
    # Every name of the metrics has a value too.
    text = httpx.get(running.dispatcher.url + "/metrics", timeout=30).text
    assert 'inlay_kv_path_prompts_total{source="p0",target="d0"}' in text
    assert 'inlay_slo_requests_total{class="chat",outcome="kept"}' in text


def test_a_click_tells_why(board: Page, running: Running) -> None:
    running.ask()
    decision = board.locator(".picked tbody tr").first
    expect(decision).to_be_visible(timeout=PATIENCE_MS)
    decision.hover()
    chosen = decision.get_attribute("data-request")
    decision.click()
    why = board.locator(".why")
    expect(why).to_contain_text("round_robin sent a prompt of", timeout=PATIENCE_MS)
    expect(why).to_contain_text("chosen")
    expect(board.locator(f'tr.chosen[data-request="{chosen}"]')).to_have_count(1)
    # It holds still under the pointer, and goes on when that leaves.
    first = board.locator(".picked tbody tr").first.get_attribute("data-request")
    running.ask()
    board.wait_for_timeout(2500)
    assert board.locator(".picked tbody tr").first.get_attribute("data-request") == first
    board.mouse.move(640, 20)
    expect(board.locator(".picked tbody tr").first).not_to_have_attribute(
        "data-request", first or "", timeout=PATIENCE_MS
    )


def test_decisions_can_be_picked_by_keyboard(board: Page, running: Running) -> None:
    running.ask()
    button = board.locator(".picked button").first
    expect(button).to_be_visible(timeout=PATIENCE_MS)
    button.focus()
    button.press("Enter")
    expect(board.locator(".why")).to_contain_text("sent a prompt of", timeout=PATIENCE_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1024, 390])
def test_nothing_is_wider_than_the_screen(
    browser: Browser, running: Running, scheme: str, width: int
) -> None:
    running.ask()
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        color_scheme=scheme,  # type: ignore[arg-type]
    )
    page = context.new_page()
    page.goto(running.dispatcher.url + "/dashboard")
    expect(page.locator(".picked tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
    wide = page.evaluate("[document.documentElement, document.querySelector('.board')].map("
                         "one => one.scrollWidth - one.clientWidth)")  # fmt: skip
    assert wide == [0, 0]
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(23, 22, 20)") == (scheme == "dark")
    if width == 1280:  # tables and all are seen whole, too
        assert page.evaluate("[...document.querySelectorAll('.scroll')].every("
                             "one => one.scrollWidth <= one.clientWidth)")  # fmt: skip
    context.close()


def test_a_hidden_page_asks_nothing(board: Page, running: Running) -> None:
    def drawn() -> str:
        return board.locator(".tile").first.inner_text()

    before = ""

    def unmoved() -> bool:
        nonlocal before
        before = drawn()
        running.ask(4)
        board.wait_for_timeout(2500)
        return drawn() == before

    board.evaluate("emitEvent('visible', false)")
    wait_until(unmoved, 30, "it knows that it is hidden")
    board.evaluate("emitEvent('visible', true)")
    expect(board.locator(".tile").first).not_to_have_text(before, timeout=PATIENCE_MS)


def test_a_lost_instance_is_seen(running: Running, browser: Browser) -> None:
    extra = RunningInstance("m0", running.directory)
    with ended(extra):
        extra.wait_ready()
        members = [running.instances["d0"].member, extra.member]
        second = RunningDispatcher(members, running.directory, serve={"page": True})
        with ended(second):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(second.url + "/dashboard")
            expect(page.locator("header")).to_contain_text(
                "2 of 2 instances ready", timeout=PATIENCE_MS
            )
            expect(page.locator(".board")).to_contain_text("No request has come yet.")
            expect(page.locator(".board")).to_contain_text("No request was refused.")
            extra.kill()
            expect(page.locator("header")).to_contain_text(
                "1 of 2 instances ready", timeout=PATIENCE_MS
            )
            expect(
                page.locator(".panel.wide tr", has_text="m0").locator(".dot.good")
            ).to_have_count(0)
            page.close()


def test_one_server_has_a_dashboard_behind_its_key(browser: Browser) -> None:
    with running_server(None, page=True, api_key=API_KEY, engine={"device": "cpu"}) as server:
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        visitor = Visitor(context, server.url)
        page = visitor.page
        page.goto(server.url + "/dashboard")
        expect(page.locator(".lock")).to_be_visible(timeout=PATIENCE_MS)
        assert page.locator(".board").count() == 0
        page.locator("#api-key").fill("wrong")
        page.locator("#api-key").press("Enter")
        expect(page.locator(".wrong")).to_have_text("This is not the key.", timeout=PATIENCE_MS)
        page.locator("#api-key").fill(API_KEY)
        page.locator("#api-key").press("Enter")
        expect(page.locator("header")).to_contain_text("one engine", timeout=PATIENCE_MS)
        expect(page.locator(".board")).to_contain_text("nothing to choose from")
        httpx.post(
            server.url + "/v1/completions",
            json={"prompt": PROMPT, "max_tokens": 4},
            headers={"Authorization": f"Bearer {API_KEY}"},
            timeout=60,
        ).raise_for_status()
        expect(page.locator(".tile", has_text="Within")).to_contain_text(
            "100 %", timeout=PATIENCE_MS
        )
        assert httpx.get(server.url + "/cluster/status").status_code == 401
        assert visitor.wrong == [] and visitor.external() == []
        context.close()
