"""Which files of a repository are the GGUF of a quantisation. Looks at names alone.

A quantisation is what file names say of it: `Q4_K_M`, `UD-Q4_K_XL`, `BF16`. A large one lies in
several files, one after the other.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from huggingface_hub import constants
from huggingface_hub.file_download import repo_folder_name

from inlay.core.errors import ModelNotFoundError
from inlay.core.units import format_bytes

_QUANT = re.compile(
    r"(?i)(?:^|[-_.])((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|F16|FP16|F32|FP32|MXFP4\w*))(?=$|[-.])"
)
_PART = re.compile(r"-\d{5}-of-\d{5}$")
# Files beside a model: what reads images, statistics of activations, layers that draft tokens.
_OTHERS = ("mmproj", "imatrix", "mtp-")
_DYNAMIC = "UD-"  # of some makers' quantisations; users leave it out


def gguf_files(name: str, sizes: Mapping[str, int], quant: str | None) -> list[str]:
    """The files of one quantisation, in order.

    Args:
        name: of the repository, for messages.
        sizes: bytes of its files, by name.
        quant: in any case; None takes the only one that there is.

    Raises:
        ModelNotFoundError: there is no such quantisation, or none was named and there are several;
            the message lists them with their sizes.
    """
    models = _models(sizes)
    listed = ", ".join(
        f"{label} ({format_bytes(sum(sizes[file] for file in files))})"
        for (label, _), files in models.items()
    )
    if not models:
        raise ModelNotFoundError(f"{name} has no GGUF files whose names say their quantisation")
    if quant is None:
        if len(models) == 1:
            return next(iter(models.values()))
        label = next(iter(models))[0]
        raise ModelNotFoundError(
            f"{name} has the quantisations {listed}: name one, as in {name}:{label}"
        )
    for wanted in (quant.upper(), _DYNAMIC + quant.upper()):
        found = [files for (label, _), files in models.items() if label == wanted]
        if len(found) == 1:
            return found[0]
        if found:
            raise ModelNotFoundError(
                f"{name} has {len(found)} models in {wanted} ({', '.join(f[0] for f in found)}): "
                "download one of them, and name its file"
            )
    raise ModelNotFoundError(f"{name} has no quantisation {quant}; it has {listed}")


def has_gguf(sizes: Mapping[str, int]) -> bool:
    """Whether there are models in GGUF."""
    return bool(_models(sizes))


def has_others(sizes: Mapping[str, int]) -> bool:
    """Whether there is GGUF that is no model by its name."""
    files = {file for file in sizes if Path(file).suffix == ".gguf"}
    return not files <= {file for files in _models(sizes).values() for file in files}


def gguf_in_cache(name: str, revision: str | None, cache: Path) -> tuple[Path, dict[str, int]]:
    """Where the hub's cache keeps a repository, and its GGUF files that are there, with sizes."""
    folder = cache / repo_folder_name(repo_id=name, repo_type="model")
    ref = folder / "refs" / (revision or constants.DEFAULT_REVISION)
    snapshot = folder / "snapshots" / (ref.read_text() if ref.is_file() else revision or "")
    files = sorted(snapshot.rglob("*.gguf"))
    return snapshot, {str(file.relative_to(snapshot)): file.stat().st_size for file in files}


def _models(sizes: Mapping[str, int]) -> dict[tuple[str, str], list[str]]:
    """Files in order, by quantisation and by their name without the number of a part."""
    models: dict[tuple[str, str], list[str]] = {}
    for file in sorted(sizes):
        path = Path(file)
        if path.suffix != ".gguf" or any(other in path.name.lower() for other in _OTHERS):
            continue
        stem = _PART.sub("", path.stem)
        if labels := _QUANT.findall(stem):
            models.setdefault((labels[-1].upper(), str(path.with_name(stem))), []).append(file)
    return models
