"""The matrices of a run under the names that adapters have for them in files."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from inlay.core.errors import ModelFileError
from inlay.models.adapter import PREFIX, Adapter
from inlay.models.targets import Target
from inlay.tune.lora import Lora, LoraPair


def load_into(lora: Lora, adapter: Adapter, directory: Path) -> None:
    """Give the matrices of a run those of an adapter, to go on training it.

    Raises:
        ModelFileError: the adapter has other matrices, or other ranks or scales.
    """
    wanted = {module for target in lora.pairs for module in target.modules}
    if other := wanted ^ adapter.pairs.keys():
        raise ModelFileError(
            f"{directory} has {len(adapter.pairs)} adapted matrices and lora_target means "
            f"{len(wanted)}; {min(other)} is in one alone: set lora_target to what the adapter has"
        )
    with torch.no_grad():
        for target, pair in lora.pairs.items():
            for number, module in enumerate(target.modules):
                read = adapter.pairs[module]
                if len(read.a) != lora.rank or abs(read.scale - lora.scale) > 1e-6 * lora.scale:
                    raise ModelFileError(
                        f"{directory}: {module} has rank {len(read.a)} and scale {read.scale:g}, "
                        f"the run rank {lora.rank} and scale {lora.scale:g}: set lora_rank and "
                        "lora_alpha to the adapter's"
                    )
                one = _one(pair, number, target)
                one.a.copy_(read.a)
                one.b.copy_(read.b)


def matrices_of(lora: Lora) -> Iterator[tuple[str, Tensor]]:
    """The matrices of a run under the keys of files, each with memory of its own."""
    for target, pair in lora.pairs.items():
        for number, module in enumerate(target.modules):
            one = _one(pair, number, target)
            for side, matrix in (("A", one.a), ("B", one.b)):
                yield f"{PREFIX}{module}.lora_{side}.weight", matrix.detach().cpu().clone()


def _one(pair: LoraPair, number: int, target: Target) -> LoraPair:
    return LoraPair(pair.a[number], pair.b[number]) if target.experts else pair
