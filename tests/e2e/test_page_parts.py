"""The chat page's plain parts: what is sent, what is shown. No browser, no server."""

import re

import msgspec
import pytest

from inlay.core.errors import (
    ContextLengthError,
    EngineDiedError,
    InlayError,
    OverloadedError,
    RequestError,
)
from inlay.core.messages import EngineInfo, EngineStats, RequestTimes, RequestTrace
from inlay.serve.page.conversation import Answer, Conversation
from inlay.serve.page.figures import compared, figures, seconds
from inlay.serve.page.inside import heat_map, inside, pages
from inlay.serve.page.markdown import to_html
from inlay.serve.page.notices import notice
from inlay.serve.page.prompts import prompts
from inlay.serve.page.status import engine_words, live_figures

COUNTS = [[0, 3, 9, 1], [5, 5, 0, 3]]


def complete(*, prompt: int = 100, cached: int = 32, first_token_s: float = 10.21) -> Answer:
    return Answer(
        text="a lamp",
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=51,
        times=RequestTimes(
            arrival_s=10.0, scheduled_s=10.01, first_token_s=first_token_s, finished_s=11.21
        ),
        trace=RequestTrace(expert_counts_LE=COUNTS, pages_reused=2, pages_used=10, preemptions=1),
    )


def test_a_conversation_sends_all_turns_and_the_system_prompt() -> None:
    chat = Conversation()
    chat.ask("one").answer.text = "first"
    chat.ask("two")
    assert chat.messages("  be brief ") == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"},
    ]


def test_unanswered_turns_are_left_out() -> None:
    chat = Conversation()
    chat.ask("lost")
    chat.ask("two")
    assert [message["content"] for message in chat.messages("")] == ["two"]


def test_questions_on_a_document_share_their_beginning_and_stand_alone() -> None:
    chat = Conversation()
    chat.ask("before").answer.text = "yes"
    chat.ask("one?", document="a text").answer.text = "first"
    (first,) = [turn.prompt for turn in chat.turns if turn.document]
    turn = chat.ask("two?", document="a text")
    (second,) = chat.messages("")
    assert second["content"] == first.replace("one?", "two?")
    turn.answer.text = "second"
    chat.ask("and then?")
    assert len(chat.messages("")) == 3  # goes on from the second question


def test_again_forgets_the_answer_alone() -> None:
    chat = Conversation()
    chat.ask("one").answer.text = "first"
    turn = chat.again()
    assert (turn.question, turn.answer.text, len(chat.turns)) == ("one", "", 1)


def test_a_copy_goes_on_by_itself() -> None:
    chat = Conversation()
    chat.ask("one").answer.text = "first"
    other = chat.copy()
    chat.ask("two")
    chat.turns[0].answer.text = "changed"
    other.ask("else")
    assert [message["content"] for message in other.messages("")] == ["one", "first", "else"]
    assert len(chat.turns) == 2


def test_the_engine_says_what_is_where() -> None:
    info = EngineInfo(
        model="m", architecture="a", parameters=10**9, max_context_tokens=9, vocab_size=9,
        layers=2, moe_layers=2, experts=16, experts_per_token=4, device="cuda:0",
        weight_format="int4", kv_dtype="bfloat16", isa="NVIDIA", page_tokens=16, num_pages=1,
        page_bytes=1, load_s=0.0,
    )  # fmt: skip
    assert "experts deferred" not in engine_words(info)
    placement = "layers 0 to 0 on cuda:0 with 3 of 16 experts each, layers 1 to 1 on cpu"
    words = engine_words(msgspec.structs.replace(info, placement=placement, deferred=2))
    assert "<span>layers 0 to 0 on cuda:0 with 3 of 16 experts each</span><span>layers 1" in words
    assert words.endswith("<span>2 experts deferred</span>")


def test_live_figures_tell_the_share_of_experts_on_a_gpu() -> None:
    alone = live_figures(EngineStats(pages_total=4, expert_activations={"device": 0, "host": 9}))
    assert "GPU" not in alone
    shared = live_figures(EngineStats(pages_total=4, expert_activations={"device": 3, "host": 1}))
    assert "experts on the GPU <b>75%</b>" in shared


def test_figures_of_a_complete_answer() -> None:
    shown = {figure.label: figure.value for figure in figures(complete())}
    assert shown == {
        "TTFT": "210 ms",
        "prefill": "340 tok/s",  # 68 tokens in 0.2 s
        "decode": "50 tok/s",  # 50 tokens in 1 s
        "cached": "32 of 100 tokens",
    }


def test_figures_of_a_stopped_answer_come_from_the_page() -> None:
    answer = Answer(ttft_s=0.1, writing_s=2.0, prompt_tokens=50, completion_tokens=21, stopped=True)
    shown = {figure.label: figure.value for figure in figures(answer)}
    assert shown["TTFT"] == "100 ms"
    assert shown["decode"] == "10 tok/s"
    assert figures(Answer(stopped=True)) == []


def test_rates_of_nothing_are_left_out() -> None:
    answer = complete(prompt=32, cached=32)
    answer.completion_tokens = 1
    assert [figure.label for figure in figures(answer)] == ["TTFT", "cached"]


@pytest.mark.parametrize(
    ("value_s", "shown"), [(0.0004, "0.4 ms"), (0.0412, "41 ms"), (1.316, "1.32 s")]
)
def test_durations_read_well(value_s: float, shown: str) -> None:
    assert seconds(value_s) == shown


def test_the_second_question_is_compared_only_if_the_cache_helped() -> None:
    slow, fast = complete(cached=0, first_token_s=11.0), complete(cached=96, first_token_s=10.05)
    assert compared(slow, fast) == (
        "First token after 50 ms instead of 1.00 s: 96 of 100 prompt tokens came from the cache."
    )
    assert compared(fast, fast) is None
    assert compared(slow, Answer(stopped=True)) is None


def test_inside_shows_times_pages_and_experts() -> None:
    html = inside(complete(), page_tokens=16)
    for part in ("queued", "10 ms", "200 ms", "1.00 s", "pages of 16 tokens", "2 layers × 4"):
        assert part in html, part
    assert "preemptions <b>1</b>" in html


def test_inside_of_a_dense_model_has_no_heat_map() -> None:
    answer = complete()
    answer.trace = RequestTrace(expert_counts_LE=[], pages_reused=0, pages_used=1, preemptions=0)
    assert "Experts" not in inside(answer, page_tokens=16)


def test_heat_map_has_a_cell_per_expert_and_tells_once_from_never() -> None:
    svg = heat_map(COUNTS)
    assert svg.count("<rect") == 8
    assert "layer 0, expert 2: chosen 9×" in svg
    (never,) = re.findall(r'<g class="heat0">(.*?)</g>', svg)
    assert never.count("<rect") == 2
    assert 'class="heat1"' in svg and 'class="heat9"' in svg


def test_heat_map_of_a_large_model_stays_small() -> None:
    svg = heat_map([[(layer * expert) % 7 for expert in range(128)] for layer in range(48)])
    assert len(svg) < 150_000
    assert "<rect" not in svg


def test_heat_map_of_no_tokens() -> None:
    assert 'class="heat0"' in heat_map([[0, 0]])


def test_pages_of_a_huge_request_are_summed_up() -> None:
    trace = RequestTrace(expert_counts_LE=[], pages_reused=0, pages_used=9_000, preemptions=0)
    assert "and 8,600 more" in pages(trace)


def test_markdown_shows_html_as_text_and_loads_nothing() -> None:
    html = to_html("<script>alert(1)</script> ![pixel](https://example.org/x.png) **bold**")
    assert "<script" not in html and "<img" not in html
    assert '<a href="https://example.org/x.png" target="_blank" rel="noopener noreferrer">' in html
    assert "<strong>bold</strong>" in html


def test_markdown_links_cannot_run_code() -> None:
    html = to_html(
        '[x](javascript:alert(1)) [y](https://example.org "t") ![z](javascript:alert(2))'
    )
    assert 'href="javascript' not in html
    assert 'rel="noopener noreferrer"' in html


def test_markdown_of_half_an_answer() -> None:
    assert "<pre>" in to_html("```python\ndef f(")
    assert "<code" in to_html("```nosuchlanguage\nx < y\n```")
    assert "<table>" in to_html("| a | b |\n|---|---|\n| 1 | 2 |")


@pytest.mark.parametrize(
    ("error", "title", "new_chat", "retry"),
    [
        (OverloadedError("full", 2.0), "The server is busy", False, True),
        (ContextLengthError("5,000 tokens"), "Too long for this model", True, False),
        (EngineDiedError("exit code 9"), "The engine is gone", False, False),
        (RequestError("bad seed"), "This cannot be answered", False, False),
        (InlayError("x"), "Something went wrong", False, True),
    ],
)
def test_notices_say_what_to_do(error: Exception, title: str, new_chat: bool, retry: bool) -> None:
    shown = notice(error)
    assert (shown.title, shown.new_chat, shown.retry) == (title, new_chat, retry)
    assert str(error) in shown.text


def test_notices_of_bugs_hide_their_inside() -> None:
    assert "secret" not in notice(KeyError("secret")).text


@pytest.mark.parametrize("is_demo", [True, False])
def test_there_are_four_prompts_one_with_a_document_asked_twice(is_demo: bool) -> None:
    cards = prompts(is_demo=is_demo)
    assert len(cards) == 4
    (shared,) = [card for card in cards if card.document]
    assert len(shared.questions) == 2
    assert len((shared.document or "").split()) > 1_100  # 1,500 tokens and more
