"""config.json of a directory of floats, as other programs want it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Makers:
    """What makers write for a `model_type`, and a GGUF file does not say.

    Attributes:
        model: the class of transformers.
        experts: the key of their number.
    """

    model: str
    experts: str = "num_experts"


_MAKERS = {
    "deepseek_v2": _Makers("DeepseekV2ForCausalLM", "n_routed_experts"),
    "deepseek_v3": _Makers("DeepseekV3ForCausalLM", "n_routed_experts"),
    "glm4_moe": _Makers("Glm4MoeForCausalLM", "n_routed_experts"),
    "gpt_oss": _Makers("GptOssForCausalLM", "num_local_experts"),
    "kimi_k2": _Makers("DeepseekV3ForCausalLM", "n_routed_experts"),
    "llama": _Makers("LlamaForCausalLM"),
    "mixtral": _Makers("MixtralForCausalLM", "num_local_experts"),
    "qwen3": _Makers("Qwen3ForCausalLM"),
    "qwen3_moe": _Makers("Qwen3MoeForCausalLM"),
}


def float_config(config: Mapping[str, Any], dtype: str = "bfloat16") -> bytes:
    """That of a model whose weights become this dtype."""
    changed = dict(config)
    quantization = changed.pop("quantization_config", None)
    changed.pop("compression_config", None)
    for key in {"dtype", "torch_dtype"} & set(config) or {"torch_dtype"}:
        changed[key] = dtype
    makers = _MAKERS.get(changed["model_type"])
    if isinstance(quantization, dict) and quantization.get("quant_method") == "gguf" and makers:
        changed.setdefault("architectures", [makers.model])
        if "kv_lora_rank" in changed:
            # transformers takes it for the rotated part; GGUF counts the one latent as a head.
            changed.pop("head_dim", None)
            changed["num_key_value_heads"] = changed["num_attention_heads"]
        if "num_experts" in changed:
            changed[makers.experts] = changed.pop("num_experts")
    return json.dumps(changed, indent=2).encode()
