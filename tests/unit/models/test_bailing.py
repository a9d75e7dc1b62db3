"""Ling's models (Bailing), whose code `transformers` has not, beside models that compute the same.

Those of version 2 are GLM-4.5 under other names; the first ones are ERNIE 4.5 with a rotation by
halves and no correction of the router's choice.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay.core.errors import UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.models.adapter import read_adapter
from inlay.models.conversion.convert import convert
from inlay.models.gguf import gguf_directory
from inlay.models.model import load_model
from inlay.tune.frozen import check_trainable
from tests.support.gguf_files import TOKENIZER, add_metadata
from tests.support.model_driver import ModelDriver
from tests.unit.models.reference import load_reference, reference_logits, relative_error
from tests.unit.models.test_tensor_parallel import check, on_cpu
from tests.unit.models.transformers_models import randomise

HEADS, KV_HEADS, WIDTH = 4, 2, 24
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": WIDTH,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
# What GLM-4.5 and the second version call alike.
ROUTED: dict[str, Any] = {
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "use_qk_norm": True,
}
WITNESSES: dict[str, dict[str, Any]] = {
    "bailing_moe": {
        "model_type": "ernie4_5_moe",
        "moe_num_experts": 6,
        "moe_k": 2,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 600000.0},
    },
    "bailing_moe_v2": {
        "model_type": "glm4_moe",
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        **ROUTED,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 600000.0,
            "partial_rotary_factor": 0.5,
        },
    },
}
# As published: `score_function` and the like are missing in the first ones.
CONFIGS: dict[str, dict[str, Any]] = {
    "bailing_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "num_shared_experts": 2,
        "first_k_dense_replace": 0,
        "norm_topk_prob": True,
        "rope_theta": 600000.0,
        "rope_scaling": None,
        "use_bias": False,
        "use_qkv_bias": False,
        "norm_head": False,
        "norm_softmax": False,
        "multi_gate": False,
    },
    "bailing_moe_v2": {
        "num_experts": 8,
        "num_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 32,
        **ROUTED,
        "use_rmsnorm": True,
        "use_bias": False,
        "use_qkv_bias": False,
        "rope_theta": 600000.0,
        "partial_rotary_factor": 0.5,
        "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "router_dtype": "fp32",
    },
}
NAMES = {
    "embed_tokens": "word_embeddings",
    "self_attn.o_proj": "attention.dense",
    "self_attn.q_norm": "attention.query_layernorm",
    "self_attn.k_norm": "attention.key_layernorm",
    "gate.e_score_correction_bias": "gate.expert_bias",
}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def make_pair(folder: Path, kind: str) -> tuple[Path, Path]:
    """A model of `transformers`, and the same one as Bailing's."""
    from transformers import AutoConfig, AutoModelForCausalLM

    witness, directory = folder / "witness", folder / "bailing"
    settings = SIZES | WITNESSES[kind]
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    model = AutoModelForCausalLM.from_config(config).float()
    randomise(model, 0)
    for name, values in model.named_buffers():
        if "moe_statics" in name:
            values.zero_()
    for name, parameter in model.named_parameters():
        if "moe_statics" in name:
            parameter.data.zero_()
    model.save_pretrained(witness)
    tensors: dict[str, torch.Tensor] = {}
    for key, values in load_file(witness / "model.safetensors").items():
        name = key
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if "moe_statics" not in key:
            tensors[name] = values
    for layer in range(SIZES["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        q, k, v = (tensors.pop(f"{at}.self_attn.{part}_proj.weight") for part in "qkv")
        if kind == "bailing_moe":
            q, k = in_halves(q, HEADS), in_halves(k, KV_HEADS)
        if f"{at}.self_attn.q_proj.bias" in tensors:
            biases = [tensors.pop(f"{at}.self_attn.{part}_proj.bias") for part in "qkv"]
            tensors[f"{at}.attention.query_key_value.bias"] = torch.cat(biases)
        tensors[f"{at}.attention.query_key_value.weight"] = torch.cat((q, k, v))
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    published = {"model_type": kind, "hidden_act": "silu", "dtype": "float32"}
    (directory / "config.json").write_text(json.dumps(published | SIZES | CONFIGS[kind]))
    return witness, directory


def in_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Put rows of pairs of neighbours half a head apart."""
    return rows.view(heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def in_pairs(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put rows of pairs half a head apart side by side."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(directory: Path, kind: str, file: Path) -> None:
    """Write the model as llama.cpp's converter does."""
    name = {"bailing_moe": "bailingmoe", "bailing_moe_v2": "bailingmoe2"}[kind]
    given = CONFIGS[kind] | SIZES
    metadata = {
        "block_count": given["num_hidden_layers"],
        "context_length": given["max_position_embeddings"],
        "embedding_length": given["hidden_size"],
        "feed_forward_length": given["intermediate_size"],
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": WIDTH,
        "attention.value_length": WIDTH,
        "attention.layer_norm_rms_epsilon": given["rms_norm_eps"],
        "rope.freq_base": given["rope_theta"],
        "rope.dimension_count": int(WIDTH * given.get("partial_rotary_factor", 1)),
        "leading_dense_block_count": given["first_k_dense_replace"],
        "expert_feed_forward_length": given["moe_intermediate_size"],
        "expert_count": given["num_experts"],
        "expert_used_count": given["num_experts_per_tok"],
        "expert_shared_count": given["num_shared_experts"],
        "expert_weights_scale": given.get("routed_scaling_factor", 1.0),
        "expert_weights_norm": given["norm_topk_prob"],
        "vocab_size": given["vocab_size"],
    }
    if kind == "bailing_moe_v2":
        metadata["expert_shared_feed_forward_length"] = given["moe_shared_expert_intermediate_size"]
        metadata["expert_group_count"] = given["n_group"]
        metadata["expert_group_used_count"] = given["topk_group"]
        metadata["expert_gating_func"] = 2
    writer = gguf.GGUFWriter(file, name)
    for key, value in ({f"{name}.{k}": v for k, v in metadata.items()} | TOKENIZER).items():
        add_metadata(writer, key, value)
    architecture = next(key for key, one in gguf.MODEL_ARCH_NAMES.items() if one == name)
    names = gguf.get_tensor_name_map(architecture, given["num_hidden_layers"])
    written: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for key, tensor in load_file(directory / "model.safetensors").items():
        values, parts = tensor.numpy(), key.split(".")
        if ".experts." in key:
            there = f"blk.{parts[2]}.{EXPERTS[parts[-2]]}.weight"
            stacks.setdefault(there, {})[int(parts[-3])] = values
        elif key.endswith("expert_bias"):
            written[f"blk.{parts[2]}.exp_probs_b.bias"] = values
        elif "query_key_value" in key and kind == "bailing_moe":
            q, k, v = np.split(values, (HEADS * WIDTH, (HEADS + KV_HEADS) * WIDTH))
            written[f"blk.{parts[2]}.attn_q.weight"] = in_pairs(q, HEADS)
            written[f"blk.{parts[2]}.attn_k.weight"] = in_pairs(k, KV_HEADS)
            written[f"blk.{parts[2]}.attn_v.weight"] = v
        else:
            there = names.get_name(key, try_suffixes=(".weight",))
            assert there is not None, key
            written[there] = values
    for there, stack in stacks.items():
        written[there] = np.stack([stack[expert] for expert in sorted(stack)])
    for there, values in written.items():
        writer.add_tensor(there, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_biases_and_packed_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`use_qkv_bias`, whose biases lie in one tensor as their matrices do."""
    monkeypatch.setitem(WITNESSES["bailing_moe_v2"], "attention_bias", True)
    monkeypatch.setitem(CONFIGS["bailing_moe_v2"], "use_qkv_bias", True)
    witness, directory = make_pair(tmp_path, "bailing_moe_v2")
    tokens = torch.randint(0, 512, (30,), generator=torch.manual_seed(1)).tolist()
    expected = reference_logits(load_reference(witness), tokens)
    convert(directory, tmp_path / "packed", weight_format="float32")
    for source in (directory, tmp_path / "packed"):
        actual = ModelDriver(load_model(source, weight_format="float32")).prefill(tokens, (7,))
        assert relative_error(actual, expected) < 1e-4, source


@pytest.mark.parametrize("kind", CONFIGS)
def test_ranks(tmp_path: Path, kind: str) -> None:
    _, directory = make_pair(tmp_path, kind)
    check(directory, 2, lambda group: on_cpu(directory, group))


def test_adapters_of_matrices_in_one_tensor(tmp_path: Path) -> None:
    _, directory = make_pair(tmp_path, "bailing_moe_v2")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    at = "base_model.model.model.layers.0.attention.query_key_value"
    rows = (HEADS + 2 * KV_HEADS) * WIDTH
    pair = {f"{at}.lora_A.weight": torch.ones(2, 64), f"{at}.lora_B.weight": torch.ones(rows, 2)}
    save_file(pair, adapter / "adapter_model.safetensors")
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 2, "lora_alpha": 2}))
    shape = read_shape(directory)
    with pytest.raises(UnsupportedModelError, match="several matrices that lie in one tensor"):
        read_adapter(adapter, shape)
    with pytest.raises(UnsupportedModelError, match="q, k and v in one matrix"):
        check_trainable(shape)


@pytest.mark.parametrize("kind", CONFIGS)
def test_logits(tmp_path: Path, kind: str) -> None:
    witness, directory = make_pair(tmp_path, kind)
    write_gguf(directory, kind, tmp_path / "model.gguf")
    tokens = torch.randint(0, 512, (50,), generator=torch.manual_seed(1)).tolist()
    expected = reference_logits(load_reference(witness), tokens)
    from_gguf = gguf_directory(tmp_path / "model.gguf", cache_dir=tmp_path / "cache")
    for backend in ("native", "torch"):
        for source in (directory, from_gguf):
            model = load_model(source, weight_format="float32", backend=backend)
            for chunks in ((), (7, 1, 13)):
                actual = ModelDriver(model).prefill(tokens, chunks)
                assert relative_error(actual, expected) < 1e-4, (backend, source)


def test_both_spellings(tmp_path: Path) -> None:
    """Files of version 2 are called `bailing_moe`, too."""
    for kind in CONFIGS:
        config = {**SIZES, **CONFIGS["bailing_moe_v2"], "model_type": kind}
        (tmp_path / "config.json").write_text(json.dumps(config))
        router = read_shape(tmp_path).router
        assert (router.score, router.correction, router.scale) == ("sigmoid", True, 2.5)


@pytest.mark.parametrize("key", ["use_bias", "norm_head", "multi_gate"])
def test_parts_that_are_not_known(tmp_path: Path, key: str) -> None:
    config = {**SIZES, **CONFIGS["bailing_moe"], "model_type": "bailing_moe", key: True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match=f"{key} True is not supported"):
        read_shape(tmp_path)
