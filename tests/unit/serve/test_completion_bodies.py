"""Completion bodies whose prompt is read before the rest: as if all had been read at once."""

import pytest

from inlay.core.errors import RequestError
from inlay.core.token_ids import unpack_token_ids
from inlay.serve.openai.completion_job import read_completion

VOCAB_SIZE = 1000


@pytest.mark.parametrize(
    "raw",
    [
        '{"prompt":[5,17],"max_tokens":3}',
        '{ "max_tokens" : 3 , "prompt" : [ 5 , 17 ] }',
        '{"max_tokens":3,"response_format":{"prompt":[1]},"prompt":[5,17]}',
        '{"max_tokens":3,"prompt":[1],"prompt":[5,17]}',
        '{"max_tokens":3,"stop":"\\"prompt\\":[1]","prompt":[5,17]}',
        '{"max_tokens":3,"user":{"prompt":[1],"a":"\\\\"},"prompt":[5,17]}',
        '{"max_tokens":3,"p\\u0072ompt":[5,17],"x":{"prompt":[1]}}',
        '{"max_tokens":3,"prompt":[[5,17]]}',
    ],
)
def test_token_ids(raw: str) -> None:
    body, prompts = read_completion(raw.encode(), VOCAB_SIZE)
    assert [unpack_token_ids(one) for one in prompts if isinstance(one, bytes)] == [[5, 17]]
    assert body.max_tokens == 3


@pytest.mark.parametrize(
    "raw,message",
    [
        ('{"prompt":[5,17],"max_tokens":"3"}', "max_tokens: must be an integer"),
        ('{"prompt":[5,17],"max_tokens":3', "not valid JSON"),
        ('{"prompt":[5,17]]}', r"not valid JSON.*\(byte 16\)"),
        ('{"prompt":[5,1000]}', "token id 1000"),
        ('{"prompt":[5,017]}', "not valid JSON"),
        ('{"prompt":[5,1.5]}', r"prompt\[1\]"),
        ('{"a":[{"prompt":[5]}]}', "prompt is missing"),
        ('"prompt":[5]', "must be an object"),
    ],
)
def test_errors(raw: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_completion(raw.encode(), VOCAB_SIZE)


def test_texts() -> None:
    raw = '{"prompt":["\\"prompt\\":[1]","b"]}'
    assert read_completion(raw.encode(), VOCAB_SIZE)[1] == ['"prompt":[1]', "b"]
