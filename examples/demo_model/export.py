"""Writes the trained model as a Hugging Face directory, each file replaced in one step."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from model import DemoModel
from safetensors.torch import save_file
from tokenizer import END, save_tokenizer
from tokenizers import Tokenizer
from wordnet import LICENCE_FILE


def hf_config(model: DemoModel) -> dict:
    """The contents of config.json."""
    c = model.config
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": 2 * c.hidden_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "num_experts": c.num_experts,
        "num_experts_per_tok": c.num_experts_per_tok,
        "moe_intermediate_size": c.moe_intermediate_size,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.001,
        "output_router_logits": False,
        "hidden_act": "silu",
        "max_position_embeddings": c.max_position_embeddings,
        "rope_theta": c.rope_theta,
        "rope_scaling": None,
        "rms_norm_eps": c.rms_norm_eps,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "sliding_window": None,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": END,
        "torch_dtype": "bfloat16",
    }


def export(model: DemoModel, tokenizer: Tokenizer, directory: Path) -> None:
    """Write config, weights (bf16), tokenizer, template and WordNet's licence to `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".export-") as scratch:
        temporary = Path(scratch)
        (temporary / "config.json").write_text(json.dumps(hf_config(model), indent=2) + "\n")
        generation = {"eos_token_id": [END], "pad_token_id": END, "do_sample": False}
        (temporary / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
        save_tokenizer(tokenizer, temporary, model.config.max_position_embeddings)
        save_file(model.to_hf(), temporary / "model.safetensors", metadata={"format": "pt"})
        shutil.copyfile(LICENCE_FILE, temporary / "LICENSE")
        for path in sorted(temporary.iterdir()):
            path.chmod(0o644)
            os.replace(path, directory / path.name)
