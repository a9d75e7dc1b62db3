"""A tiny model in transformers, with the LoRA of one of ours in PEFT."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inlay.models.targets import Target
from inlay.tune.lora import Lora
from inlay.tune.model import TrainModel

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
TARGETS = (*ATTENTION, "experts.down_proj")

Named = dict[tuple[Target, str], Tensor]


def load_base(directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model without LoRA."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype)


def same_in_peft(
    directory: Path, model: TrainModel, dtype: torch.dtype = torch.float32
) -> tuple[Any, Named]:
    """A model with the matrices of ours, and its parameters by target and side.

    The three matrices of an expert have one A for gate and up in PEFT, so `model` has `TARGETS`.
    """
    from peft import LoraConfig, get_peft_model

    peft = get_peft_model(
        load_base(directory, dtype),
        LoraConfig(
            r=model.lora.rank,
            lora_alpha=model.lora.rank * model.lora.scale,
            lora_dropout=0.0,
            target_modules=list(ATTENTION),
            target_parameters=["mlp.experts.down_proj"],
        ),
    )
    parameters, named = dict(peft.named_parameters()), {}
    for target in model.lora.pairs:
        module = target.path.removesuffix(".down_proj")
        for side in "AB":
            parameter = parameters[f"base_model.model.{module}.lora_{side}.default.weight"]
            with torch.no_grad():
                parameter.copy_(_copied(target, side, model.lora))
            named[target, side] = parameter
    assert sum(parameter.requires_grad for parameter in parameters.values()) == len(named)
    return peft, named


def _copied(target: Target, side: str, lora: Lora) -> Tensor:
    """A matrix of ours as PEFT holds it; of all experts of a layer as one."""
    pair = lora.pairs[target]
    if side == "A":
        return pair.a.detach().flatten(0, -2)
    return pair.b.detach() if not target.experts else pair.b.detach().permute(1, 2, 0).flatten(1)
