from typing import Any

import pytest

from inlay.serve.generate.prompts import Job, read_jobs
from inlay.serve.openai.protocol import ChatRequest, CompletionRequest


def jobs(text: str, **options: Any) -> list[Job]:
    options = {"raw": False, "has_template": True} | options
    defaults = options.pop("defaults", {})
    return list(read_jobs(text.splitlines(keepends=True), defaults, **options))


def test_lines_of_text_become_chats() -> None:
    first, second = jobs("Define lantern.\n\n  \nDefine bridge.\r\n")
    assert isinstance(first.request, ChatRequest)
    assert first.request.messages == [{"role": "user", "content": "Define lantern."}]
    assert (second.index, second.line) == (1, 4)
    assert isinstance(second.request, ChatRequest)


def test_raw_lines_and_models_without_a_template() -> None:
    for options in ({"raw": True}, {"has_template": False}):
        (job,) = jobs("Once upon", **options)
        assert isinstance(job.request, CompletionRequest)
        assert bytes(job.request.prompt) == b'"Once upon"'


def test_jsonl_with_sampling_fields_and_ids() -> None:
    text = (
        '{"prompt": "a", "temperature": 0.5, "id": {"row": 7}}\n'
        '{"messages": [{"role": "user", "content": "b"}], "max_tokens": 3}\n'
        '{"prompt": [1, 2]}\n'
    )
    first, second, third = jobs(text, defaults={"max_tokens": 9, "temperature": 0.0})
    assert isinstance(first.request, CompletionRequest)
    assert (first.request.temperature, first.request.max_tokens) == (0.5, 9)
    assert first.tag == {"row": 7}
    assert isinstance(second.request, ChatRequest) and second.request.max_tokens == 3
    assert isinstance(third.request, CompletionRequest) and bytes(third.request.prompt) == b"[1, 2]"


def test_bad_lines_keep_their_place() -> None:
    text = "\n".join(
        [
            '{"prompt": "fine"}',
            "{broken",
            '"text"',
            '{"temperature": 1}',
            '{"prompt": "a", "messages": []}',
            '{"prompt": "a", "temperatures": 1}',
            '{"prompt": "a", "temperature": "hot"}',
            '{"prompt": ["a", "b"]}',
            '{"prompt": "a", "n": 2}',
            '{"prompt": "fine"}',
        ]
    )
    found = jobs(text)
    assert [job.error is None for job in found] == [True, *[False] * 8, True]
    messages = [str(job.error) for job in found]
    for index, expected in enumerate(
        [
            "is no JSON (Expecting property name",
            "is a text: must be an object: write an object with `prompt` or `messages`",
            "either `prompt` or `messages`",
            "either `prompt` or `messages`",
            "unknown field 'temperatures'; did you mean temperature?",
            "temperature: must be a number, but is a text",
            "one text or one list of token ids",
            "n is not supported here",
        ],
        start=1,
    ):
        assert expected in messages[index]


def test_the_first_line_decides_the_form() -> None:
    first, second = jobs('just text\n{"prompt": "still text"}\n')
    assert isinstance(second.request, ChatRequest)
    assert second.request.messages == [{"role": "user", "content": '{"prompt": "still text"}'}]
    assert first.error is None


def test_bytes_that_are_not_utf8_are_named() -> None:
    bad, good = jobs(b"ab\xff\nhello\n".decode(errors="surrogateescape"))
    assert str(bad.error) == "not UTF-8 at character 3 of the line"
    assert good.error is None


def test_deep_json_fails_its_own_line_only() -> None:
    deep = "[" * 100_000
    (alone,) = jobs(deep)
    assert alone.error is None, "a first line that is no object is plain text"
    first, second, third = jobs('{"prompt": "a"}\n' + deep + '\n{"prompt": "b"}\n')
    assert first.error is None and third.error is None
    assert "is no JSON that can be read" in str(second.error)


@pytest.mark.parametrize("line", ['{"prompt": "a"}', "a"])
def test_a_byte_order_mark_belongs_to_no_prompt(line: str) -> None:
    (plain,), (marked,) = jobs(line), jobs("\ufeff" + line)
    assert marked.error is None and marked.request == plain.request
