"""What LoRA runs of the existing stack keep on GPUs for the backward pass, counted and not run.

transformers' own layers and PEFT's adapters pass a row on PyTorch's meta device, and all that
autograd keeps is counted once. Attention is the plain one, which keeps scores and probabilities;
routed experts are computed elsewhere, as KTransformers does. Products and adapters are bfloat16.
"""

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from inlay.core.known_models import known_config

# Layers of one kind are alike: these few tell of all.
_FIRST_DENSE, _LAYERS = "first_k_dense_replace", "num_hidden_layers"


def kept_bytes(model: str, tokens: int, lora_rank: int) -> float:
    """Of a whole model, without recomputation, for one row.

    Args:
        model: one of `inlay.core.known_models`, a mixture of experts.
    """
    config = known_config(model) or {}
    dense = config.get(_FIRST_DENSE, 0)
    sparse = config[_LAYERS] - dense
    first = 1 if dense else 0
    one = _kept(config, first, 1, tokens, lora_rank)
    of_sparse = _kept(config, first, 2, tokens, lora_rank) - one
    of_dense = _kept(config, 2, 1, tokens, lora_rank) - one if dense else 0
    return one + (dense - first) * of_dense + (sparse - 1) * of_sparse


def _kept(config: dict[str, Any], dense: int, sparse: int, tokens: int, lora_rank: int) -> int:
    """The same of a model with so many layers."""
    given = {name: value for name, value in config.items() if name not in _IDLE}
    given[_LAYERS] = dense + sparse
    if _FIRST_DENSE in given:
        given[_FIRST_DENSE] = dense
    kind = {"kimi_k2": "deepseek_v3"}.get(config["model_type"], config["model_type"])
    kept: dict[int, Tensor] = {}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind, use_cache=False, **given),
            attn_implementation="eager",
            dtype=torch.bfloat16,
        )
        for module in model.modules():
            if hasattr(module, "experts"):
                module.experts = _Elsewhere()
        matrices = {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and name != "lm_head"
        }
        adapters = LoraConfig(r=lora_rank, target_modules=sorted(matrices))
        model = get_peft_model(model, adapters, autocast_adapter_dtype=False).train()
        own = {_place(one) for one in (*model.parameters(), *model.buffers())}

        def keep(tensor: Tensor) -> Tensor:
            if _place(tensor) not in own:
                kept[_place(tensor)] = tensor
            return tensor

        ids_1T = torch.zeros((1, tokens), dtype=torch.long)
        hidden = model.get_input_embeddings()(ids_1T).detach().requires_grad_()
        mask = torch.zeros((1, 1, tokens, tokens), dtype=torch.bfloat16)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(inputs_embeds=hidden, attention_mask=mask, labels=ids_1T)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


_IDLE = ("model_type", "architectures", "auto_map", "quantization_config", "use_cache")


def _place(tensor: Tensor) -> int:
    """What two views of the same memory have in common."""
    return int(tensor.untyped_storage()._cdata)


class _OnHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor) -> Tensor:
        ctx.weights = weights.shape, weights.dtype
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        size, dtype = ctx.weights
        return gradient, gradient.new_zeros(size, dtype=dtype)


class _Elsewhere(nn.Module):
    """Routed experts that keep nothing on the device."""

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """Something of the input's shape."""
        out: Tensor = _OnHost.apply(x, weights)
        return out
