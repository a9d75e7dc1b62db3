"""Which part of a model is held how, and what that takes."""

from typing import Any

import pytest

from inlay.core.errors import UnsupportedModelError
from inlay.core.known_models import known_config
from inlay.core.model_config import shape_of
from inlay.core.quantization import BlockTypes
from inlay.models.formats import (
    BYTES_PER_WEIGHT,
    WEIGHT_FORMATS,
    PartFormats,
    block_formats,
    check_row_lengths,
    format_that_fits,
    full_name,
    halves,
    is_weight_format,
    packed_bytes,
    part_formats,
)

CONFIG = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 4096,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
SHAPE = shape_of(CONFIG)


def test_int4_is_an_alias() -> None:
    assert full_name("int4") == "int4:g32"
    assert [full_name(name) for name in BYTES_PER_WEIGHT] == list(BYTES_PER_WEIGHT)
    assert {full_name(name) for name in WEIGHT_FORMATS} == {"auto", *BYTES_PER_WEIGHT}


def test_experts_apart_from_the_rest() -> None:
    assert full_name("int4+bf16") == "int4:g32+bfloat16"
    assert full_name("bf16+bfloat16") == "bfloat16"
    assert full_name("int8+int8") == "int8+int8"
    assert halves("int4:g32+bfloat16") == ("int4:g32", "bfloat16")
    assert halves("int8") == ("int8", "int8")
    assert is_weight_format("int4+float32") and is_weight_format("auto")
    for name in ("int3", "int4+", "+int4", "auto+int8", "int8+auto", "int8+int8+int8", ""):
        assert not is_weight_format(name), name
    rest = dict.fromkeys(("mlp", "attention", "latent", "head"), "int4:g64")
    assert part_formats(SHAPE, "mxfp4+int4:g64", "bfloat16") == PartFormats(
        experts="mxfp4", router="bfloat16", **rest
    )
    assert part_formats(SHAPE, "int8+float32", "bfloat16").router == "float32"


@pytest.mark.parametrize("name", ["int4:g128", "int4:g64", "int4:g32"])
def test_int4_is_for_experts_and_mlps(name: str) -> None:
    assert part_formats(SHAPE, name, "bfloat16") == PartFormats(
        experts=name, mlp=name, attention="int8", latent="int8", router="bfloat16", head="int8"
    )


@pytest.mark.parametrize("name", ["int8", "int8:g32"])
def test_int8_spares_the_router(name: str) -> None:
    assert part_formats(SHAPE, name, "float32") == PartFormats(
        experts=name, mlp=name, attention=name, latent=name, router="float32", head=name
    )


@pytest.mark.parametrize(
    ("quantization", "name", "rest"),
    [
        ({"quant_method": "mxfp4"}, "mxfp4", "bfloat16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8:g128", "fp8:g128"),
    ],
)
def test_what_files_hold_stays_as_it_is(quantization: dict[str, Any], name: str, rest: str) -> None:
    # With one layer that is dense.
    config = CONFIG | {"quantization_config": quantization, "mlp_only_layers": [0]}
    shape = shape_of(config)
    assert part_formats(shape, name, "bfloat16") == PartFormats(
        experts=name, mlp=rest, attention=rest, latent="bfloat16", router="bfloat16",
        head="bfloat16",
    )  # fmt: skip
    assert part_formats(shape, "int4:g32", "bfloat16").attention == "int8"


def test_routers_that_are_exact_stay_so() -> None:
    shape = shape_of(CONFIG | {"model_type": "glm4_moe", "n_routed_experts": 128})
    for name in ("bfloat16", "int8", "float32"):
        assert part_formats(shape, name, "bfloat16").router == "float32"


def test_floats_are_for_all() -> None:
    assert set(vars(part_formats(SHAPE, "float32", "bfloat16")).values()) == {"float32"}


def test_rows_too_long_for_int8_are_refused() -> None:
    long = shape_of(CONFIG | {"hidden_size": 65568, "head_dim": 2048})
    for name in ("int8:g32", "bfloat16"):
        check_row_lengths(long, part_formats(long, name, "bfloat16"))
    for name in ("int8", "int4"):
        with pytest.raises(UnsupportedModelError, match="attention have 65568: use 'int8:g32'"):
            check_row_lengths(long, part_formats(long, name, "bfloat16"))
    check_row_lengths(SHAPE, part_formats(SHAPE, "int8", "bfloat16"))


def test_memory_of_a_large_model() -> None:
    """Qwen3-30B-A3B: 57 GiB in bf16, and a third of a byte over half a byte each in int4."""
    gib = {name: packed_bytes(SHAPE, name) / 2**30 for name in BYTES_PER_WEIGHT}
    assert gib["bfloat16"] == pytest.approx(56.3, abs=0.1)
    assert gib["float32"] == 2 * gib["bfloat16"]
    assert gib["int8"] == pytest.approx(28.2, abs=0.1)
    assert gib["int4:g32"] == pytest.approx(16.4, abs=0.1)
    assert packed_bytes(SHAPE, "int4") == packed_bytes(SHAPE, "int4:g32")


@pytest.mark.parametrize(
    ("rest", "latent"), [("float16", "float16"), ("bfloat16", "bfloat16"), ("q4_k", "int8:g32")]
)
def test_latent_projections_of_gguf_files(rest: str, latent: str) -> None:
    """Floats stay floats: rounded to 8 bits they were the largest error of a file in F16."""
    blocks = BlockTypes(experts="q4_k", rest=rest, head="q6_k", file_bytes=1)
    assert block_formats(blocks).latent == latent


def test_latent_projections_beside_fp8_are_floats() -> None:
    config = known_config("deepseek-v3")
    assert config is not None
    shape = shape_of(config)
    head = 129280 * 7168
    latent = 61 * 128 * 512 * (128 + 128)
    routers = 58 * 256 * (7168 + 1)
    norms = (2 * 61 + 1) * 7168
    others = shape.parameters - 2 * head - latent - routers - norms
    expected = 2 * (head + latent) + 4 * routers + (1 + 4 / 128) * others
    assert packed_bytes(shape, "fp8:g128") == pytest.approx(expected, rel=1e-9)


def test_what_fits_is_named() -> None:
    for name in BYTES_PER_WEIGHT:
        if name in ("float16", "mxfp4"):  # as many bytes as bfloat16 and int4:g64
            continue
        room = packed_bytes(SHAPE, name)
        assert format_that_fits(SHAPE, room).startswith(f"weight_format {name} would need ")
        assert not format_that_fits(SHAPE, room - 1).startswith(f"weight_format {name} ")
    least = format_that_fits(SHAPE, 1000)
    assert "even weight_format int4:g128 would need 15.1 GiB" in least and "smaller model" in least
    assert "even weight_format bfloat16" in format_that_fits(SHAPE, 1000, ("float32", "bfloat16"))
