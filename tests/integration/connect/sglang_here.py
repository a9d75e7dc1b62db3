"""SGLang's package without what its storage and transfers never use.

The environment `sglang` has the package (`pip install --no-deps sglang`) and, of what its modules
import, pillow, pybase64, dill, ipython, apache-tvm-ffi, sentencepiece, compressed-tensors and
loguru; torch and transformers are those of this interpreter. The package's own `__init__` is
passed over, and torchvision, which only its image models call, is an empty stand-in.
"""

import importlib
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from unittest.mock import MagicMock

IMAGES = ("", ".transforms", ".transforms.functional", ".transforms.v2", ".io")


def use(site: str) -> None:
    """Make `import sglang.srt...` work, from a folder of site-packages."""
    sys.path.append(site)  # behind ours
    package = types.ModuleType("sglang")
    package.__path__ = [str(Path(site) / "sglang")]
    sys.modules["sglang"] = package
    # These look for torchvision when they are imported, and must not find the stand-in.
    importlib.import_module("transformers").AutoProcessor  # noqa: B018
    importlib.import_module("transformers").AutoImageProcessor  # noqa: B018
    for name in IMAGES:
        module = MagicMock(name=f"torchvision{name}")
        module.__spec__ = ModuleSpec(f"torchvision{name}", None)
        module.__path__ = []
        sys.modules[f"torchvision{name}"] = module
