"""Whether a model's packed weights are what was written."""

import time
from dataclasses import dataclass
from pathlib import Path

from inlay.core.errors import ModelFileError, ModelNotFoundError


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A packed file after every byte of it was read.

    Attributes:
        problem: what is wrong with it, or None.
    """

    file: str
    size_bytes: int
    seconds: float
    problem: str | None


def check_weights(directory: Path) -> Weights:
    """Compare a packed model with its checksums.

    Raises:
        ModelNotFoundError: there are no packed weights in the directory.
    """
    from inlay.kernels import PackedFile
    from inlay.models.packed_metadata import PACKED_FILE

    file = directory / PACKED_FILE
    if not file.is_file():
        raise ModelNotFoundError(
            f"{directory} holds no {PACKED_FILE}: only packed weights carry checksums"
        )
    start, problem = time.perf_counter(), None
    try:
        PackedFile(file).verify()
    except ModelFileError as error:
        problem = str(error)
    return Weights(
        file=str(file),
        size_bytes=file.stat().st_size,
        seconds=time.perf_counter() - start,
        problem=problem,
    )
