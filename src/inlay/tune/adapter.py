"""The matrices of a run under the names that adapters have for them in files."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from inlay.core.errors import ModelFileError
from inlay.models.adapter import PREFIX, Adapter
from inlay.models.targets import Target
from inlay.models.torch_arrays import tensor_of
from inlay.tune.lora import Lora, LoraPair


def check_continues(
    adapter: Adapter, directory: Path, targets: Iterable[Target], rank: int, scale: float
) -> None:
    """Refuse an adapter that a run cannot go on training.

    Args:
        directory: of the adapter.
        targets, rank, scale: of the run.

    Raises:
        ModelFileError: the adapter has other matrices, or other ranks or scales.
    """
    wanted = {module for target in targets for module in target.modules}
    if other := wanted ^ adapter.pairs.keys():
        raise ModelFileError(
            f"{directory} has {len(adapter.pairs)} adapted matrices and lora_target means "
            f"{len(wanted)}; {min(other)} is in one alone: set lora_target to what the adapter has"
        )
    for module, read in adapter.pairs.items():
        if len(read.a) != rank or abs(read.scale - scale) > 1e-6 * scale:
            raise ModelFileError(
                f"{directory}: {module} has rank {len(read.a)} and scale {read.scale:g}, the run "
                f"rank {rank} and scale {scale:g}: set lora_rank and lora_alpha to the adapter's"
            )


def load_into(lora: Lora, adapter: Adapter, directory: Path) -> None:
    """Give the matrices of a run those of an adapter, to go on training it.

    Raises:
        ModelFileError: as `check_continues`.
    """
    check_continues(adapter, directory, lora.pairs, lora.rank, lora.scale)
    with torch.no_grad():
        for target, pair in lora.pairs.items():
            for number, module in enumerate(target.modules):
                read = adapter.pairs[module]
                one = _one(pair, number, target)
                one.a.copy_(tensor_of(read.a))
                one.b.copy_(tensor_of(read.b))


def matrices_of(lora: Lora) -> Iterator[tuple[str, Tensor]]:
    """The matrices of a run under the keys of files, each with memory of its own."""
    for target, pair in lora.pairs.items():
        for number, module in enumerate(target.modules):
            one = _one(pair, number, target)
            for side, matrix in (("A", one.a), ("B", one.b)):
                yield f"{PREFIX}{module}.lora_{side}.weight", matrix.detach().cpu().clone()


def _one(pair: LoraPair, number: int, target: Target) -> LoraPair:
    return LoraPair(pair.a[number], pair.b[number]) if target.experts else pair
