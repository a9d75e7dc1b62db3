import pytest

from inlay.core.known_models import known_config, known_models
from inlay.core.model_config import shape_of

# As their makers state them, in 10^9: all weights, and those that a token passes.
PUBLISHED = {
    "deepseek-r1": (671, 37),
    "deepseek-v2": (236, 21),
    "deepseek-v2-lite": (15.7, 2.4),
    "deepseek-v3": (671, 37),
    "glm-4.5": (355, 32),
    "glm-4.5-air": (106, 12),
    "gpt-oss-120b": (116.8, 5.1),
    "gpt-oss-20b": (20.9, 3.6),
    "kimi-k2": (1026, 32),
    "llama-3.1-70b": (70.6, 69.5),
    "llama-3.1-8b": (8.03, 7.5),
    "mixtral-8x7b": (46.7, 12.9),
    "qwen3-235b-a22b": (235, 22),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-8b": (8.2, 7.57),
}


@pytest.mark.parametrize("name", known_models())
def test_sizes_are_the_published_ones(name: str) -> None:
    config = known_config(name)
    assert config is not None
    shape = shape_of(config)
    parameters, active = PUBLISHED[name]
    assert shape.parameters / 1e9 == pytest.approx(parameters, rel=0.01)
    # Makers round these, and count embeddings as they like.
    assert shape.active_parameters / 1e9 == pytest.approx(active, rel=0.09)


def test_names_of_the_hub_are_known_in_any_case() -> None:
    assert known_config("DeepSeek-AI/deepseek-v3") == known_config("deepseek-v3")
    assert known_config("deepseek-v4") is None
