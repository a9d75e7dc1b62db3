"""Where a model comes from: the shipped demo, a directory, or a name. Loads no torch.

resolve_model(None)                      the demo model inside the package
resolve_model("smollm2")                 a small one, from the hub or the package registry
resolve_model("models/mine")             a directory
resolve_model("models/mine.gguf")        a file of llama.cpp's
resolve_model("Qwen/Qwen3-0.6B@main")    the Hugging Face hub
resolve_model("unsloth/Qwen3-8B-GGUF:Q4_K_M")
resolve_model("modelscope:Qwen/Qwen3-0.6B")
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inlay.core.errors import ModelNotFoundError, UnsupportedModelError
from inlay.core.settings import read_settings
from inlay.models.shard_files import gguf_files
from inlay.models.small_models import SMALL_MODELS, fetch_small_model

if TYPE_CHECKING:
    from inlay.models.download import Progress

DEMO_NAME = "inlay-demo"
_HUB_NAME = re.compile(
    r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?(?::(?P<quant>[\w.-]+))?"
)
_MODELSCOPE = "modelscope:"


@dataclass(frozen=True)
class ModelSource:
    """A model's files on this machine.

    Attributes:
        directory: holds config.json, weights and tokenizer.
        name: what the user called it; `inlay-demo` for the demo.
        is_demo: it is the model that comes with the package.
        auto_format: how its weights are best held, which is what the format `auto` means for it.
    """

    directory: Path
    name: str
    is_demo: bool = False
    auto_format: str = "auto"

    def weight_format(self, asked: str) -> str:
        """The format to hold its weights in, where this one is asked for."""
        return self.auto_format if asked == "auto" else asked


def resolve_model(
    name: str | None,
    *,
    weight_format: str | None = "auto",
    offline: bool = False,
    token: str | None = None,
    progress: "Progress | None" = None,
    cache_dir: Path | None = None,
) -> ModelSource:
    """Find a model, and fetch it first if it is a hub name, or of `SMALL_MODELS`.

    Args:
        name: see above.
        weight_format: how the weights will be held; what memory cannot hold is not fetched. None:
            they will not be held.
        offline: fetch nothing, take names from the caches.
        token: for gated and private models; None takes the stored one or `HF_TOKEN`.
        progress: called with bytes there and bytes in all while fetching.
        cache_dir: instead of the hub library's own cache.

    Raises:
        ModelNotFoundError: no such directory, model, revision or file, or no access.
        UnsupportedModelError: not a kind of model that can be served, or an extra is missing.
        ResourceError: disk or memory is too small for it.
        ModelError: the hub cannot be reached; of a small model, the package registry neither.
    """
    if name is None or name == DEMO_NAME:
        return _demo()
    if name.startswith(_MODELSCOPE):
        return ModelSource(_from_modelscope(name, weight_format, offline, token, cache_dir), name)
    path = Path(name).expanduser()
    if path.is_dir():
        _refuse_gguf_folder(path)
        return ModelSource(path.resolve(), name)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return _from_gguf(path, name)
    if path.is_file():
        raise UnsupportedModelError(
            f"{name} is a file: give the directory that holds config.json, tokenizer.json and "
            "*.safetensors, or a *.gguf file"
        )
    fetch = partial(
        _from_hub,
        weight_format=weight_format,
        offline=offline,
        token=token,
        progress=progress,
        cache_dir=cache_dir,
    )
    if name in SMALL_MODELS:
        return _small(name, fetch, offline, cache_dir)
    match = _HUB_NAME.fullmatch(name)
    if match is None or name.startswith((".", "~", "/")):
        missing = "file" if path.suffix.lower() == ".gguf" else "model directory"
        raise ModelNotFoundError(
            f"there is no {missing} {name}: give "
            "a directory with config.json, a *.gguf file, a hub name such as Qwen/Qwen3-0.6B or "
            f"modelscope:Qwen/Qwen3-0.6B, or one of {', '.join(SMALL_MODELS)}"
        )
    found = fetch(match["name"], revision=match["revision"], quant=match["quant"])
    return ModelSource(found, name) if found.is_dir() else _from_gguf(found, name)


def _refuse_gguf_folder(directory: Path) -> None:
    """Refuse a directory of GGUF files: it may hold several models or quantisations."""
    found = gguf_files(directory)
    if found and not (directory / "config.json").is_file():
        raise UnsupportedModelError(
            f"{directory} holds GGUF files: name the one to serve, such as {found[0]}"
        )


def _from_hub(name: str, **options: Any) -> Path:
    """As `inlay.models.hub.fetch`."""
    from inlay.models import hub  # a third of a second, which only those pay who fetch

    return hub.fetch(name, **options)


def _small(
    name: str, from_hub: Callable[[str], Path], offline: bool, cache_dir: Path | None
) -> ModelSource:
    def is_offline() -> bool:
        from inlay.models import hub

        return offline or hub.is_offline()

    folder = (cache_dir or read_settings().cache_dir) / "packaged"
    found, auto_format = fetch_small_model(name, from_hub, folder, is_offline=is_offline)
    source = ModelSource(found, name) if found.is_dir() else _from_gguf(found, name)
    return replace(source, auto_format=auto_format)


def _from_gguf(file: Path, name: str) -> ModelSource:
    from inlay.models.gguf import gguf_directory  # its library is not loaded for others

    return ModelSource(gguf_directory(file), name)


def _demo() -> ModelSource:
    directory = Path(str(files("inlay.models"))) / "demo"
    if not (directory / "config.json").is_file():
        raise ModelNotFoundError(
            "no model was named, and this installation has no demo model: name a model (a "
            "directory, or a hub name such as Qwen/Qwen3-0.6B), or install Inlay from a release "
            "or a full checkout, which bring the demo model along"
        )
    return ModelSource(directory, DEMO_NAME, is_demo=True)


def _from_modelscope(
    name: str, weight_format: str | None, offline: bool, token: str | None, cache_dir: Path | None
) -> Path:
    match = _HUB_NAME.fullmatch(name.removeprefix(_MODELSCOPE))
    if match is None:
        raise ModelNotFoundError(f"{name!r} is not of the form modelscope:org/name[@revision]")
    if match["quant"]:
        raise UnsupportedModelError(
            f"{name}: GGUF files are not fetched from ModelScope: download those of "
            f"{match['quant']}, and name the first file"
        )
    from inlay.models import modelscope

    return modelscope.fetch(
        match["name"],
        revision=match["revision"],
        weight_format=weight_format,
        offline=offline,
        token=token,
        cache_dir=cache_dir,
    )
