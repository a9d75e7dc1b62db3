"""The same engine on a CUDA device: plain PyTorch, without the CPU kernels."""

import pytest

from inlay.core.messages import SamplingParams
from inlay.engine import Engine, EngineConfig
from tests.support.tiny_models import make_tiny_model

PROMPTS = ["The lantern hangs", "A carpenter sets small pieces", "Every morning the ferry " * 20]


@pytest.mark.gpu
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe"])
def test_greedy_text_is_that_of_the_cpu(architecture, tmp_path):
    model = str(make_tiny_model(tmp_path / "model", architecture, dtype="float32"))
    texts = {}
    for device in ("cpu", "cuda"):
        engine = Engine(EngineConfig(model=model, device=device, weight_format="float32"))
        params = SamplingParams(temperature=0, max_tokens=64, ignore_eos=True)
        first = [c.text for c in engine.generate(PROMPTS, params)]
        again = [c.text for c in engine.generate(PROMPTS, params)]  # after prefix hits
        engine.close()
        assert first == again
        texts[device] = first
    assert texts["cpu"] == texts["cuda"]
