"""What `quantization_config` says, as makers write it: formats of parts, and what is refused."""

from dataclasses import replace
from typing import Any

import pytest

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_shape import MlaShape, ModelShape, RopeShape
from inlay.core.published.modules import is_named
from inlay.core.published.read import read_quantization
from inlay.core.quantization import BlockTypes

DENSE = ModelShape(
    architecture="llama",
    layers=4,
    hidden=512,
    heads=8,
    kv_heads=4,
    head_dim=64,
    vocab=1000,
    intermediate=1024,
    max_context_tokens=4096,
    rope=RopeShape(rotary_dim=64),
)
SPARSE = replace(
    DENSE,
    architecture="glm4_moe",
    sparse_layers=(1, 2, 3),
    experts=8,
    experts_per_token=2,
    moe_intermediate=256,
    shared_intermediate=256,
)
MIXTRAL = replace(DENSE, architecture="mixtral", sparse_layers=(0, 1, 2, 3), experts=8)

AWQ: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 128,
    "modules_to_not_convert": None,
    "version": "gemm",
    "zero_point": True,
}
GPTQ: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 128,
    "desc_act": False,
    "sym": True,
    "damp_percent": 0.01,
    "true_sequential": True,
    "dataset": None,
}
ROUND: dict[str, Any] = {
    "quant_method": "auto-round",
    "bits": 4,
    "group_size": 128,
    "sym": True,
    "data_type": "int",
    "autoround_version": "0.4.7",
    "packing_format": "auto_round:auto_gptq",
}
BNB: dict[str, Any] = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "load_in_8bit": False,
    "_load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_quant_storage": "uint8",
    "llm_int8_skip_modules": None,
    "llm_int8_threshold": 6.0,
}
MODELOPT: dict[str, Any] = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "ignore": ["lm_head", "model.layers.*.self_attn*"],
    "producer": {"name": "modelopt", "version": "0.29.0"},
    "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"},
}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}


FLOATS = {"bits": 16, "data_type": "float"}
TEXT_LAYERS = "model.language_model.layers"


def compressed(packing: str, *groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    """As llm-compressor writes it."""
    return {
        "quant_method": "compressed-tensors",
        "format": packing,
        "config_groups": {f"group_{number}": group for number, group in enumerate(groups)},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
        "sparsity_config": {},
        "kv_cache_scheme": None,
        "global_compression_ratio": 1.5,
        "version": "0.10.2",
    } | more


def group(weights: dict[str, Any], *targets: str, **more: Any) -> dict[str, Any]:
    return {
        "targets": list(targets or ("Linear",)),
        "weights": weights | {"actorder": None, "observer": "minmax", "observer_kwargs": {}},
        "input_activations": {"dynamic": True, "num_bits": 8},
        "output_activations": None,
    } | more


def found(given: dict[str, Any], shape: ModelShape = DENSE) -> tuple[str | None, ...]:
    """Formats of experts (or what is most), the rest, attention, and the output matrix."""
    stored = read_quantization({"quantization_config": given}, shape)
    if stored is None:
        return ()
    return stored.weight_format, stored.rest, stored.attention, stored.head


def everywhere(name: str) -> tuple[str | None, ...]:
    return name, name, name, None


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (AWQ, "uint4:g32"),
        (AWQ | {"zero_point": False}, "int4:g128"),
        (AWQ | {"group_size": 16}, "int8:g32"),
        (GPTQ, "int4:g128"),
        (GPTQ | {"group_size": 64}, "int4:g64"),
        (GPTQ | {"group_size": 96}, "int4:g32"),
        (GPTQ | {"group_size": -1}, "int4:g128"),
        (GPTQ | {"sym": False}, "uint4:g32"),
        (GPTQ | {"desc_act": True}, "int8:g32"),
        (GPTQ | {"desc_act": True, "group_size": -1}, "int4:g128"),
        (GPTQ | {"bits": 8}, "int8:g32"),
        (GPTQ | {"bits": 8, "group_size": -1}, "int8"),
        (GPTQ | {"bits": 8, "sym": False}, "int8:g32"),
        (ROUND, "int4:g128"),
        (ROUND | {"packing_format": "auto_round:auto_awq", "sym": False}, "uint4:g32"),
        (BNB, "int8:g32"),
        (BNB | {"load_in_4bit": False, "load_in_8bit": True}, "int8"),
        (compressed("pack-quantized", group(INT4)), "int4:g128"),
        (compressed("pack-quantized", group(INT4 | {"symmetric": False})), "uint4:g32"),
        (compressed("pack-quantized", group(INT4 | {"num_bits": 8})), "int8:g32"),
        (compressed("float-quantized", group(FP8)), "fp8:g128"),
        (compressed("float-quantized", group(FP8 | {"strategy": "tensor"})), "fp8:g128"),
        (compressed("naive-quantized", group(FP8)), "fp8:g128"),
        (compressed("int-quantized", group(FP8 | {"type": "int"})), "int8"),
        (compressed("nvfp4-pack-quantized", group(NVFP4)), "int8:g32"),
        (MODELOPT | {"ignore": ["lm_head"]}, "int8:g32"),
        (MODELOPT | {"ignore": ["lm_head"], "quant_algo": "FP8"}, "fp8:g128"),
        ({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}, "fp8:g128"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, "fp8:g128"),
    ],
)
def test_all_layers_alike(given: dict[str, Any], name: str) -> None:
    assert found(given) == everywhere(name)
    assert found(given, SPARSE) == everywhere(name)
    assert found(given, MIXTRAL) == (name, None, name, None)


@pytest.mark.parametrize(
    ("given", "formats"),
    [
        (AWQ | {"modules_to_not_convert": ["self_attn", "mlp.gate."]}, ("uint4:g32",) * 2),
        (MODELOPT, ("int8:g32", "int8:g32")),
        (BNB | {"llm_int8_skip_modules": ["lm_head", "self_attn"]}, ("int8:g32", "int8:g32")),
        (
            compressed("pack-quantized", group(INT4, r"re:.*mlp\.experts\.\d+\..*")),
            ("int4:g128", None),
        ),
        (
            compressed("pack-quantized", group(INT4), ignore=["re:.*self_attn.*", "re:.*shared_.*"])
            | {"targets": None},
            ("int4:g128", "int8:g32"),  # of the rest some layers are floats
        ),
        (GPTQ | {"modules_in_block_to_quantize": [["mlp.down_proj"]]}, ("int8:g32", "int8:g32")),
        (
            GPTQ | {"dynamic": {r"-:.*\.self_attn\..*": {}, r"+:.*shared.*": {"bits": 8}}},
            ("int4:g128", "int8:g32"),
        ),
        (
            ROUND
            | {"extra_config": {f"{TEXT_LAYERS}.{n}.self_attn.q_proj": FLOATS for n in range(4)}
               | {r".*self_attn\.[kvo].*": FLOATS}},
            ("int4:g128", "int4:g128"),
        ),
    ],
)  # fmt: skip
def test_attention_stays_floats(given: dict[str, Any], formats: tuple[str, ...]) -> None:
    experts, rest, attention, head = found(given, SPARSE)
    assert (experts, rest, attention) == (*formats, None)
    assert head is None or given["quant_method"] == "compressed-tensors"


def test_groups_of_their_own() -> None:
    """By names before classes; the output matrix where nothing ignores it."""
    given = compressed(
        "mixed-precision",
        group(FP8, format="float-quantized"),
        group(NVFP4, r"re:.*mlp\.experts.*", format="nvfp4-pack-quantized"),
        ignore=[],
    )
    assert found(given, SPARSE) == ("int8:g32", "fp8:g128", "fp8:g128", "fp8:g128")
    layers = {
        f"model.layers.{n}.mlp.{name}_proj": {"quant_algo": "FP8"}
        for n in range(4)
        for name in ("gate", "up", "down")
    }
    mixed = MODELOPT | {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert found(mixed) == ("fp8:g128", "fp8:g128", None, None)


def test_floats_among_the_quantised_are_not_held_in_4_bits() -> None:
    ignored = ["model.layers.2.self_attn.o_proj", "model.language_model.layers.1.mlp.up_proj"]
    given = AWQ | {"modules_to_not_convert": ignored}
    assert found(given) == everywhere("int8:g32")
    assert found(AWQ | {"modules_to_not_convert": ["model.layers"]}) == ()
    experts = MODELOPT | {"ignore": ["lm_head", "*.experts.*"]}
    assert found(experts, SPARSE)[:2] == ("int8:g32", "int8:g32")


def test_latent_attention_and_stacked_matrices_have_their_names() -> None:
    mla = MlaShape(q_rank=64, kv_rank=64, nope_dim=32, rope_dim=32, value_dim=64)
    shape = replace(DENSE, architecture="deepseek_v3", mla=mla, kv_heads=8)
    ignored = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
    given = AWQ | {"modules_to_not_convert": ignored}
    assert found(given, shape) == ("uint4:g32", "uint4:g32", None, None)
    phi3 = replace(DENSE, architecture="phi3")
    given = GPTQ | {"modules_in_block_to_quantize": [["mlp.gate_up_proj"], ["mlp.down_proj"]]}
    assert found(given, phi3) == ("int4:g128", "int4:g128", None, None)


@pytest.mark.parametrize(
    ("architecture", "shared", "attention"),
    [
        ("bailing_moe_v2", "shared_experts", ["query_key_value", "dense"]),
        ("bailing_moe_v2", "shared_experts", ["attention"]),
        ("hunyuan_v1_moe", "shared_mlp", ["self_attn"]),
    ],
)
def test_modules_that_few_models_call_so(
    architecture: str, shared: str, attention: list[str]
) -> None:
    shape = replace(SPARSE, architecture=architecture, shared_intermediate=SPARSE.moe_intermediate)
    given = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    assert found(given, shape)[1:3] == ("fp8:g128", "fp8:g128")
    kept = given | {"modules_to_not_convert": [shared]}
    assert found(kept, shape)[1:3] == ("int8:g32", "fp8:g128")  # dense layers have no floats
    kept = given | {"modules_to_not_convert": attention}
    assert found(kept, shape)[1:3] == ("fp8:g128", None)


def test_what_a_pattern_means() -> None:
    module = "model.layers.3.mlp.gate_proj"
    for pattern in ("gate_proj", "mlp", "model.layers.3", "layers.3.mlp.gate_proj", "*.gate_proj",
                    "model.layers.*.mlp", "re:.*gate_p", "language_model.model.layers.3.mlp",
                    "re:model.language_model.layers.3"):  # fmt: skip
        assert is_named(module, (pattern,)), pattern
    for pattern in (
        "mlp.gate",
        "gate",
        "layers.30",
        "model.layers.1*",
        "re:gate_proj",
        "model.mlp",
    ):
        assert not is_named(module, (pattern,)), pattern


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (AWQ | {"version": "gemv"}, "awq: version 'gemv' is not supported; supported is 'gemm'"),
        (AWQ | {"bits": 3}, "awq: bits 3 is not supported"),
        (AWQ | {"lm_head": True}, "awq: lm_head True is not supported"),
        (GPTQ | {"format": "bitblas"}, "gptq: format 'bitblas' is not supported"),
        (AWQ | {"rotation": "hadamard"}, "awq: rotation 'hadamard' is not known here"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        (GPTQ | {"is_marlin_format": True}, "is_marlin_format True is not supported"),
        (GPTQ | {"bits": 5}, "gptq: bits 5 is not supported"),
        (GPTQ | {"group_size": 0}, "group_size 0 is not supported; supported is a whole number"),
        (GPTQ | {"dynamic": {".*": {"twist": 1}}}, r"dynamic\.\.\*: twist 1 is not known here"),
        (GPTQ | {"dynamic": {"(": {}}}, r"'\(' is no regular expression"),
        (ROUND | {"packing_format": "auto_round:fp8"}, "packing_format 'auto_round:fp8' is not"),
        (ROUND | {"data_type": "mx_fp"}, "data_type 'mx_fp' is not supported"),
        (BNB | {"load_in_8bit": True}, "load_in_4bit True and load_in_8bit True are not"),
        (BNB | {"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage 'bfloat16' is not"),
        (MODELOPT | {"quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ' is not supported"),
        (MODELOPT | {"ignore": "lm_head"}, "ignore 'lm_head' is not supported; supported is a li"),
        (compressed("marlin-24", group(INT4)), "format 'marlin-24' is not supported"),
        (compressed("pack-quantized", group(INT4 | {"num_bits": 3})), "int weights of 3 bits by"),
        (compressed("pack-quantized", group(INT4 | {"twist": 1})), "weights: twist 1 is not known"),
        (compressed("pack-quantized", group(INT4), sparsity_config={"format": "sparse-24"}),
         "sparsity_config .* is not supported; supported is none"),
        (compressed("pack-quantized", group(INT4), transform_config={"config_groups": {"R1": {}}}),
         "transform_config .* is not supported"),
        (compressed("int-quantized", group(FP8 | {"type": "int", "symmetric": False})),
         "symmetric False, are not supported as 'int-quantized'"),
        ({"quant_method": "fp8", "expert_dtype": "fp4"}, "expert_dtype 'fp4' is not supported"),
        ({"quant_method": "quark"}, "quantised with 'quark' are not supported; supported are fp8"),
    ],
)  # fmt: skip
def test_what_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        found(given)


@pytest.mark.parametrize("change", [{"rest": "q9_z"}, {"head": None}, {"file_bytes": "much"}])
def test_gguf_blocks_that_are_not_known_are_refused(change: dict[str, Any]) -> None:
    blocks = {"experts": "q4_k", "rest": "q6_k", "head": "float16", "file_bytes": 100}
    given = {"quant_method": "gguf", "weight_format": "uint4:g32", "rest": "int8:g32"}
    given |= {"head": "float32"}
    config = {"quantization_config": given | {"blocks": blocks}}
    found = read_quantization(config, DENSE)
    assert found is not None and found.blocks == BlockTypes(**blocks)
    with pytest.raises(UnsupportedModelError, match="name the .gguf file instead"):
        read_quantization({"quantization_config": given | {"blocks": blocks | change}}, DENSE)
