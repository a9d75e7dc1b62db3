"""Versions of what Inlay stands on."""

import importlib.metadata
import importlib.util
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from inlay import __version__

# Distribution names; the first group is needed, the second optional.
REQUIRED = (
    "torch", "numpy", "safetensors", "tokenizers", "jinja2", "huggingface_hub", "llguidance",
    "fastapi", "uvicorn", "uvloop", "httptools", "aiohttp", "pyzmq", "msgspec", "nicegui",
    "prometheus-client", "psutil", "typer", "rich",
)  # fmt: skip
OPTIONAL = ("modelscope",)


@dataclass(frozen=True, kw_only=True)
class Software:
    """Versions; None for what is not installed."""

    inlay: str
    python: str
    kernel: str
    libc: str
    packages: dict[str, str | None]
    torch_cuda: str | None
    compiler: str | None


def read_software() -> Software:
    """Read versions from package metadata, importing none of them."""
    return Software(
        inlay=__version__,
        python=platform.python_version(),
        kernel=f"{platform.system()} {platform.release()}",
        libc=" ".join(platform.libc_ver()).strip(),
        packages={name: _version(name) for name in (*REQUIRED, *OPTIONAL)},
        torch_cuda=_torch_cuda(),
        compiler=next((name for name in ("g++", "clang++", "c++") if shutil.which(name)), None),
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _torch_cuda() -> str | None:
    """The CUDA version torch was built for, read from its version file; None for CPU builds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", text, re.MULTILINE)
    return match[1] if match else None
