"""Prompts as token ids in JSON: what is read at once, and what is left to a JSON decoder."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from inlay.core.token_ids import pack_token_ids, unpack_token_ids
from inlay.kernels import parse_token_ids
from inlay.kernels.reference import parse_token_ids as reference

SPACE = st.text(" \n\r\t", max_size=2)


@given(
    token_ids=st.lists(st.one_of(st.integers(0, 99), st.integers(0, 2**32 - 1)), min_size=1),
    spaces=st.tuples(SPACE, SPACE, SPACE),
)
def test_lists_of_token_ids(token_ids: list[int], spaces: tuple[str, str, str]) -> None:
    before, between, behind = spaces
    text = f"{before}[{behind}{f'{between},{behind}'.join(map(str, token_ids))}{between}]{before}"
    data, end = text.encode(), len(text) - len(before)
    found = parse_token_ids(data, 2**32)
    assert found == (pack_token_ids(token_ids), end) == reference(data, 2**32)
    assert unpack_token_ids(found[0]) == token_ids
    assert parse_token_ids(data, max(token_ids)) is None
    behind_all = b"1," + data + b",2"
    assert parse_token_ids(behind_all, 2**32, 2) == (found[0], 2 + end)
    assert reference(behind_all, 2**32, 2) == (found[0], 2 + end)


@given(text=st.text("[],01289 -.e\"'\n:;", max_size=24))
def test_equals_the_reference(text: str) -> None:
    data = text.encode()
    assert parse_token_ids(data, 1000) == reference(data, 1000)


@pytest.mark.parametrize(
    "text",
    ["", "[", "[]", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "[01]", "[-1]", "[1.0]", "[1e1]"]
    + ["1", '"1"', "null", "[null]", "[[1]]", "[true]", "[10]", "[4294967296]", "[99999999999]"]
    + [json.dumps([10**30]), "[1:]", "[1\x00]", "[123456789]", "[1234567/]"],
)
def test_everything_else(text: str) -> None:
    assert parse_token_ids(text.encode(), 10) is None
    assert reference(text.encode(), 10) is None
