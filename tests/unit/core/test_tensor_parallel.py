"""How ranks divide a model."""

from dataclasses import replace
from typing import Any

import pytest

from inlay.core.errors import ConfigError
from inlay.core.model_shape import ModelShape, RopeShape
from inlay.core.quantization import Quantization
from inlay.core.tensor_parallel import ALONE, Rank, shape_of_rank

SHAPE = ModelShape(
    architecture="qwen3_moe",
    layers=2,
    hidden=64,
    heads=32,
    kv_heads=4,
    head_dim=128,
    vocab=1003,
    intermediate=6144,
    sparse_layers=(0, 1),
    experts=128,
    experts_per_token=8,
    moe_intermediate=768,
    max_context_tokens=4096,
    rope=RopeShape(rotary_dim=128),
)


def quantized(group: int, rest: str | None = None) -> ModelShape:
    stored = Quantization(
        method="fp8",
        weight_format="fp8:g128",
        group=group,
        rest=rest,
        attention=rest,
        file_bytes=1.0,
    )
    return replace(SHAPE, quantization=stored)


def refusal(shape: ModelShape, degree: int) -> str:
    with pytest.raises(ConfigError) as caught:
        shape_of_rank(shape, degree)
    return str(caught.value)


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("count", [1, 4, 12, 1003])
def test_parts_are_all_of_it_once(degree: int, count: int) -> None:
    parts = [Rank(number, degree).part(count) for number in range(degree)]
    assert [row for part in parts for row in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8, 32])
@pytest.mark.parametrize("degree", [1, 2, 4, 8, 16])
def test_a_rank_has_the_keys_that_its_queries_look_at(kv_heads: int, degree: int) -> None:
    shape = replace(SHAPE, kv_heads=kv_heads)
    own = shape_of_rank(shape, degree)
    for number in range(degree):
        rank = Rank(number, degree)
        kv_part = rank.kv_part(kv_heads)
        assert len(kv_part) == own.kv_heads
        for place, head in enumerate(rank.part(shape.heads)):
            key = kv_part[place * own.kv_heads // own.heads]
            assert key == head * kv_heads // shape.heads


def test_what_a_rank_has() -> None:
    own = shape_of_rank(replace(SHAPE, shared_intermediate=512), 4)
    assert (own.heads, own.kv_heads, own.head_dim) == (8, 1, 128)
    assert (own.moe_intermediate, own.shared_intermediate, own.experts) == (192, 128, 128)
    assert (own.hidden, own.vocab) == (64, 1003)
    assert shape_of_rank(SHAPE, 1) == SHAPE


@pytest.mark.parametrize(
    ("changes", "degree", "message"),
    [
        ({}, 5, "its 32 heads; possible are 1, 2, 4, 8, 16, 32"),
        ({"heads": 24, "kv_heads": 8}, 3, "its 8 heads of keys and values; possible are 1, 2, 4,"),
        ({"moe_intermediate": 700}, 8, "the width of its experts, 700; possible are 1, 2, 4"),
        ({"shared_intermediate": 50}, 4, "the width of its shared experts, 50; possible are 1, 2"),
        ({"sparse_layers": (1,), "intermediate": 98}, 4, "the width of its MLPs, 98;"),
    ],
)
def test_what_cannot_be_divided(changes: dict[str, Any], degree: int, message: str) -> None:
    refused = refusal(replace(SHAPE, **changes), degree)
    assert refused.startswith(f"placement.tensor_parallel={degree} does not divide this model: ")
    assert message in refused


def test_groups_stay_whole() -> None:
    assert shape_of_rank(quantized(128), 2).moe_intermediate == 384
    assert "its experts, 768, are 6 groups of 128 weights that share a scale" in refusal(
        quantized(128), 4
    )
    assert shape_of_rank(quantized(32), 8).moe_intermediate == 96
    few = replace(quantized(32, rest="int8:g32"), heads=4, kv_heads=4, head_dim=24)
    assert "its 4 heads have values of 96 in all, in groups of 32; possible are 1" in refusal(
        few, 2
    )
    assert shape_of_rank(replace(few, quantization=None), 2).heads == 2


def test_ranks_are_counted() -> None:
    assert ALONE.is_alone and ALONE.is_first
    assert not Rank(1, 2).is_first
    with pytest.raises(ConfigError, match=r"rank 2 is not in 0\.\.1"):
        Rank(2, 2)
    assert "there is at least one process" in refusal(SHAPE, 0)


def test_one_rank_divides_nothing() -> None:
    """Whatever the files have: also a width whose last group is not full."""
    uneven = replace(quantized(128), moe_intermediate=300)
    assert shape_of_rank(uneven, 1) is uneven
    assert "possible are 1" in refusal(uneven, 2)
