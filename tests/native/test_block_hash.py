"""Block names in batch equal `inlay.core.block_hash`, and BLAKE2b equals hashlib's."""

import hashlib

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from inlay.core import block_hash
from inlay.core.errors import ArgumentError
from inlay.kernels import block_hash_chain


@given(
    key=st.binary(min_size=1, max_size=64),
    parent=st.binary(min_size=16, max_size=16),
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=200),
    block_tokens=st.integers(1, 70),
)
def test_equals_core(key: bytes, parent: bytes, token_ids: list[int], block_tokens: int) -> None:
    expected = b"".join(block_hash.chain(key, token_ids, block_tokens, parent))
    assert block_hash_chain(key, parent, token_ids, block_tokens) == expected
    array = np.array(token_ids, np.uint32)
    for form in (array, array.astype("<u4").tobytes(), tuple(token_ids), [*array]):
        assert block_hash_chain(key, parent, form, block_tokens) == expected


def test_messages_of_whole_hash_blocks() -> None:
    """BLAKE2b ends a message that fills its 128-byte blocks exactly in its own way."""
    for block_tokens in (28, 60, 92):
        ids = np.arange(block_tokens, dtype=np.uint32)
        data = bytes(16) + ids.tobytes()
        for key in (b"", b"k"):
            expected = hashlib.blake2b(data, digest_size=16, key=key).digest()
            assert block_hash_chain(key, bytes(16), ids, block_tokens) == expected


@pytest.mark.parametrize(
    "arguments,name",
    [
        ((b"k" * 65, bytes(16), [1], 1), "namespace_key"),
        ((b"k", bytes(15), [1], 1), "parent"),
        ((b"k", bytes(16), [1], 0), "block_tokens"),
        ((b"k", bytes(16), [-1], 1), "token_ids"),
        ((b"k", bytes(16), [2**32], 1), "token_ids"),
        ((b"k", bytes(16), [1.5], 1), "token_ids"),
        ((b"k", bytes(16), "12", 1), "token_ids"),
        ((b"k", bytes(16), b"12345", 1), "token_ids"),
        ((b"k", bytes(16), np.zeros(3, np.int64), 1), "token_ids"),
        ((b"k", bytes(16), np.zeros((3, 1), np.uint32), 1), "token_ids"),
        ((b"k", bytes(16), np.zeros(6, np.uint32)[::2], 1), "token_ids"),
    ],
)
def test_bad_input(arguments: tuple[bytes, bytes, object, int], name: str) -> None:
    with pytest.raises(ArgumentError, match=name):
        block_hash_chain(*arguments)  # type: ignore[arg-type]
