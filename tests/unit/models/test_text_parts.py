"""Models of text and images: their text part computes what it does in `transformers`."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from inlay.models.model import load_model
from tests.support.model_driver import ModelDriver
from tests.unit.models.reference import relative_error
from tests.unit.models.transformers_models import randomise

_TEXT = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 300,
    "max_position_embeddings": 256,
}
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
MODELS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {"model_type": "gemma3_text", "query_pre_attn_scalar": 16, **_TEXT},
        "vision_config": {"model_type": "siglip_vision_model", **_VISION},
        "image_token_index": 299,
        "boi_token_index": 298,
        "eoi_token_index": 297,
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **_TEXT},
        "vision_config": {"model_type": "pixtral", "head_dim": 16, **_VISION},
        "image_token_index": 299,
        "tie_word_embeddings": False,
    },
}


@pytest.mark.parametrize("kind", MODELS)
def test_text_parts(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from transformers import AutoConfig, AutoModelForImageTextToText

    config = AutoConfig.for_model(kind, **MODELS[kind])
    model = AutoModelForImageTextToText.from_config(config, attn_implementation="eager").float()
    randomise(model, seed=1)
    model.eval().save_pretrained(tmp_path)
    tokens = torch.randint(0, 290, (30,), generator=torch.manual_seed(1)).tolist()
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
    with caplog.at_level(logging.INFO, "inlay"):
        loaded = load_model(tmp_path, weight_format="float32")
    assert "only the text part is loaded" in caplog.text
    assert relative_error(ModelDriver(loaded).prefill(tokens, (11,)), expected) < 1e-4
