"""Which safetensors files of a directory hold a model. Opens none of them but the index."""

import re
from pathlib import Path

from inlay.core.errors import ModelNotFoundError, UnsupportedModelError
from inlay.core.weight_index import WEIGHT_INDEX, read_weight_index

_PART = re.compile(r"(?P<name>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")


def some(names: list[str]) -> str:
    """The first few of many names, and how many more."""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def find_shards(directory: Path) -> tuple[list[Path], dict[str, str]]:
    """The shards that are there, and the index (name -> file name) if there is one.

    Raises:
        ModelNotFoundError: there are none, or without an index not all that their names count.
        ModelFileError: the index is damaged.
        UnsupportedModelError: the weights have another form.
    """
    if (directory / WEIGHT_INDEX).is_file():
        index = read_weight_index(directory / WEIGHT_INDEX)
        names = sorted(set(index.values()))
        found = [directory / name for name in names if (directory / name).is_file()]
        if not found:
            raise ModelNotFoundError(
                f"{directory} lacks all of {len(names)} weight files: {some(names)}; download the "
                "model again"
            )
        return found, index
    if (directory / "model.safetensors").is_file():
        return [directory / "model.safetensors"], {}
    found = sorted(directory.glob("*.safetensors"))
    if found:
        _refuse_missing_parts(directory, found)
        return found, {}
    if files := gguf_files(directory):
        raise UnsupportedModelError(
            f"{directory} holds no *.safetensors: name its GGUF file to serve that, such as "
            f"{files[0]}"
        )
    if files := sorted(directory.glob("*.onnx")):
        raise UnsupportedModelError(
            f"{directory} holds {files[0].name} but no *.safetensors; ONNX is not read: take the "
            "model's safetensors or GGUF files"
        )
    other = sorted(file.name for end in ("*.bin", "*.pt", "*.pth") for file in directory.glob(end))
    if other:
        raise UnsupportedModelError(
            f"{directory} holds {some(other)} but no *.safetensors; only safetensors weights are "
            "read: take the model's safetensors or GGUF files, or convert it with transformers "
            "(`AutoModelForCausalLM.from_pretrained(...).save_pretrained(...)`)"
        )
    raise ModelNotFoundError(f"{directory} holds no *.safetensors: download the model's weights")


def gguf_files(directory: Path) -> list[Path]:
    """List the GGUF files of a directory, image parts of models behind the models."""
    return sorted(directory.glob("*.gguf"), key=lambda file: ("mmproj" in file.name, file))


def _refuse_missing_parts(directory: Path, found: list[Path]) -> None:
    """Without an index the names tell how many files there should be."""
    matches = [match for file in found if (match := _PART.fullmatch(file.name))]
    numbers = {(match["name"], int(match["count"]), int(match["number"])) for match in matches}
    missing = [
        f"{name}-{number:05d}-of-{count:05d}.safetensors"
        for name, count in sorted({one[:2] for one in numbers})
        for number in range(1, count + 1)
        if (name, count, number) not in numbers
    ]
    if missing:
        raise ModelNotFoundError(
            f"{directory} has no {WEIGHT_INDEX} and lacks {some(missing)}: download the model again"
        )
