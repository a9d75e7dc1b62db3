"""`transformers` in float32 with eager attention, as the measure of the decoder."""

from pathlib import Path

import pytest
import torch


def load_reference(directory: Path) -> torch.nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        attn_implementation="eager",
        experts_implementation="eager",
        dtype=torch.float32,
    ).eval()


@torch.inference_mode()
def reference_logits(
    model: torch.nn.Module, tokens: list[int], *, rounded: torch.dtype = torch.float32
) -> torch.Tensor:
    """Logits `[T, V]` of one whole pass; what is multiplied with a weight is rounded first."""
    linear = torch.nn.functional.linear

    def rounding(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return linear(x.to(rounded).float(), *weights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "linear", rounding)
        return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()


@torch.inference_mode()
def reference_greedy(model: torch.nn.Module, tokens: list[int], count: int) -> list[int]:
    """Greedy tokens, with the cache of `transformers`."""
    result = model.generate(
        torch.tensor([tokens]),
        do_sample=False,
        min_new_tokens=count,
        max_new_tokens=count,
        eos_token_id=-1,
    )
    return result[0, len(tokens) :].tolist()


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest magnitude of each row."""
    scale = expected.abs().amax(-1, keepdim=True)
    return float(((actual - expected).abs() / scale).max())
