"""The public surface, and what loads without torch."""

import subprocess
import sys

import inlay.models

WITHOUT_TORCH = (
    "inlay.models",
    "inlay.models.batch",
    "inlay.models.chat_template",
    "inlay.models.hub",
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
