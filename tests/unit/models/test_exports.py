"""The public surface, and what works without torch."""

import subprocess
import sys
from pathlib import Path

import inlay.models
from tests.support.tiny_models import make_tiny_model

WITHOUT_TORCH = (
    "inlay.models",
    "inlay.engine.engine",
    "inlay.models.batch",
    "inlay.models.chat_template",
    "inlay.models.conversion.convert",
    "inlay.models.hub",
    "inlay.models.model",
    "inlay.models.source",
    "inlay.models.text",
    "inlay.core.model_shape",
)


def test_exports() -> None:
    assert inlay.models.__all__ == ["ForwardBatch", "KvPool", "Model", "convert", "load_model"]
    assert all(hasattr(inlay.models, name) for name in inlay.models.__all__)


def test_no_torch() -> None:
    code = f"import sys, {', '.join(WITHOUT_TORCH)}; assert 'torch' not in sys.modules"
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_a_cpu_serves_without_torch(tmp_path: Path) -> None:
    """From a file to an answer: loading PyTorch would take longer than all else of a start."""
    model = make_tiny_model(tmp_path / "model", dtype="bfloat16")
    code = (
        "import sys; sys.modules['torch'] = None\n"  # whoever imports it gets an ImportError
        "from inlay.core.messages import GenerateRequest, SamplingParams\n"
        "from inlay.core.token_ids import pack_token_ids\n"
        "from inlay.engine import Engine, EngineConfig\n"
        f"engine = Engine(EngineConfig(model={str(model)!r}, device='auto'))\n"
        "prompt, params = pack_token_ids([5, 6, 7]), SamplingParams(max_tokens=3)\n"
        "engine.add(GenerateRequest(request_id='a', prompt=prompt, params=params, arrival_s=0.0))\n"
        "assert any(engine.step() for _ in range(3))\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
