"""A random model as a checkpoint would hold it: its tensors by name, drawn when asked for."""

from functools import lru_cache

import numpy as np
import torch

from benchmarks.kernels.random_model import Array, Size, Stack, draw_stack, matrices, vectors
from inlay.core.model_config import shape_of
from inlay.models.weight_names import names_of

# The matrices of one layer: experts are asked for one by one, with gate, up and down in turn.
KEPT_STACKS = 8


class RandomTensors:
    """Named bf16 tensors of the model that belongs to a size and a seed."""

    def __init__(self, size: Size, seed: int) -> None:
        names = names_of(shape_of(config(size))).names
        self._vectors = {names[part].format(layer=layer): n for part, layer, n in vectors(size)}
        self._places: dict[str, tuple[int, int | None]] = {}
        for index, (part, layer, _, copies) in enumerate(matrices(size)):
            if part.startswith("expert_"):
                for expert in range(copies):
                    name = names[part].format(layer=layer, expert=expert)
                    self._places[name] = (index, expert)
            else:
                self._places[names[part].format(layer=layer)] = (index, None)

        @lru_cache(KEPT_STACKS)
        def stack(index: int) -> tuple[Stack, Array]:
            drawn = draw_stack(size, seed, index)
            return drawn, (drawn.base_RK.view(np.uint32) >> 16).astype(np.uint16)

        self._stack = stack

    def get(self, name: str) -> torch.Tensor:
        """A new tensor. Raises KeyError for a name that the model does not have."""
        if name in self._vectors:
            return torch.ones(self._vectors[name], dtype=torch.bfloat16)
        index, expert = self._places[name]
        stack, bits_RK = self._stack(index)
        if expert is not None:
            rows = stack.copy(expert, bits_RK)
        else:
            rows = np.concatenate([stack.copy(copy, bits_RK) for copy in range(stack.copies)])
        return torch.from_numpy(rows).view(torch.bfloat16)


def config(size: Size) -> dict[str, object]:
    """The model's config.json."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": size.hidden,
        "intermediate_size": 3 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "vocab_size": size.vocab,
        "num_experts": size.experts,
        "num_experts_per_tok": size.top_k,
        "moe_intermediate_size": size.intermediate,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "hidden_act": "silu",
        "attention_bias": False,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "rope_theta": size.rope_theta,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 40960,
        "torch_dtype": "bfloat16",
    }
