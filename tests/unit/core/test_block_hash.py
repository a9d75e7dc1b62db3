"""Block names never change: stores on disk and other processes hold them."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inlay.core.block_hash import DIGEST_BYTES, ROOT, Namespace, chain, store_key
from inlay.core.errors import ArgumentError
from inlay.core.kv_format import gqa_format

VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "block_hash.json").read_text())
FORMAT = gqa_format(layers=2, kv_heads=2, head_dim=16, dtype="bfloat16")


def _namespace(**fields):
    return Namespace(
        **{"fingerprint": "f", "weight_format": "bfloat16", "kv_format": FORMAT} | fields
    )


@pytest.mark.parametrize("vector", VECTORS["chains"], ids=lambda vector: vector["name"])
def test_chain_vectors(vector):
    digests = chain(
        bytes.fromhex(vector["namespace_key"]),
        vector["token_ids"],
        vector["block_tokens"],
        bytes.fromhex(vector["parent"]),
    )
    assert [digest.hex() for digest in digests] == vector["digests"]


@pytest.mark.parametrize("vector", VECTORS["namespaces"], ids=lambda vector: vector["name"])
def test_namespace_vectors(vector):
    kv_format = gqa_format(**vector["kv_format"])
    namespace = Namespace(**vector["fields"], kv_format=kv_format)
    assert namespace.key(vector["secret"].encode()).hex() == vector["key"]


def test_the_formula_by_hand():
    data = ROOT + b"".join(token.to_bytes(4, "little") for token in (1, 2, 2**32 - 1))
    expected = hashlib.blake2b(data, digest_size=DIGEST_BYTES, key=b"key").digest()
    assert chain(b"key", [1, 2, 2**32 - 1], 3) == [expected]


@given(
    token_ids=st.lists(st.integers(0, 2**32 - 1), max_size=40),
    block_tokens=st.integers(1, 9),
    cut=st.integers(0, 5),
)
def test_a_chain_can_be_continued(token_ids, block_tokens, cut):
    whole = chain(b"k", token_ids, block_tokens)
    assert len(whole) == len(token_ids) // block_tokens
    cut = min(cut, len(whole))
    parent = whole[cut - 1] if cut else ROOT
    assert chain(b"k", token_ids[cut * block_tokens :], block_tokens, parent) == whole[cut:]


def test_a_name_depends_on_all_tokens_before():
    first, second = chain(b"k", [1, 2, 3, 4], 2), chain(b"k", [9, 2, 3, 4], 2)
    assert first[0] != second[0] and first[1] != second[1]
    assert chain(b"other", [1, 2], 2) != first[:1]


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "g"},
        {"weight_version": 1},
        {"weight_format": "float32"},
        {"adapter": "a"},
        {"tenant_salt": "t"},
        {"kv_format": gqa_format(layers=2, kv_heads=2, head_dim=16, dtype="float16")},
        {
            "kv_format": gqa_format(
                layers=2, kv_heads=2, head_dim=16, dtype="bfloat16", page_tokens=8
            )
        },
    ],
)
def test_every_field_separates_namespaces(change):
    assert _namespace(**change).key(b"s") != _namespace().key(b"s")


def test_secrets_separate_and_tensor_parallelism_does_not():
    assert _namespace().key(b"a") != _namespace().key(b"b")
    split = gqa_format(layers=2, kv_heads=2, head_dim=16, dtype="bfloat16")
    split = type(split)(
        page_tokens=16,
        dtype="bfloat16",
        planes=split.planes,
        layers=2,
        tp_degree=2,
        tp_rank=1,
    )
    assert _namespace(kv_format=split).key(b"a") == _namespace().key(b"a")


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="block_tokens must be at least 1, got 0"):
        chain(b"k", [1], 0)
    with pytest.raises(ArgumentError, match="namespace_key must have at most 64 bytes, got 65"):
        chain(b"k" * 65, [1], 1)
    for wrong in (-1, 2**32, 1.5):
        with pytest.raises(ArgumentError, match=r"token_ids must be ints in 0\.\.2\^32-1"):
            chain(b"k", [1, wrong], 1)
    with pytest.raises(ArgumentError, match="parent must have 16 bytes, got 3"):
        chain(b"k", [1], 1, b"abc")


def test_store_keys():
    assert store_key(bytes(range(16))) == "000102030405060708090a0b0c0d0e0f/0of1"
    assert store_key(ROOT, 1, 4) == "0" * 32 + "/1of4"
