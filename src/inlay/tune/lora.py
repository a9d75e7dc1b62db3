"""The matrices that training changes: for each target A and B, y += scale * B (A x).

Shapes: r rank, N rows and M columns of the target, E experts, T tokens.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inlay.models.targets import Target


@dataclass(frozen=True)
class LoraPair:
    """A and B of one target, float32 or bfloat16.

    Attributes:
        a: `[r, M]`; of routed experts `[E, r, M]`.
        b: `[N, r]`; of routed experts `[E, N, r]`.
    """

    a: Tensor
    b: Tensor


class Lora:
    """All LoRA matrices of a model.

    Attributes:
        rank: r, of all pairs.
        scale: of their product.
        pairs: in the order of the targets.
    """

    def __init__(self, rank: int, scale: float, pairs: dict[Target, LoraPair]) -> None:
        self.rank, self.scale, self.pairs = rank, scale, pairs
        self._by_place = {(target.layer, target.part): pair for target, pair in pairs.items()}

    def pair(self, layer: int, part: str) -> LoraPair | None:
        """That of a part of a layer, if it is a target."""
        return self._by_place.get((layer, part))

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """All matrices with names that stay the same."""
        for target, pair in self.pairs.items():
            yield f"{target.path}.lora_A", pair.a
            yield f"{target.path}.lora_B", pair.b

    @property
    def trainable(self) -> int:
        """Number of weights."""
        return sum(tensor.numel() for _, tensor in self.named())


def new_lora(
    targets: Iterable[Target],
    *,
    rank: int,
    scale: float,
    seed: int,
    dtype: torch.dtype = torch.float32,
    layer_devices: Sequence[torch.device] = (),
) -> Lora:
    """Begin: A is uniform within 1 / sqrt(M), as in PEFT, and B is 0.

    What a target gets depends on the seed and its name alone. Matrices of routed experts lie in
    host memory, where these are computed.

    Args:
        layer_devices: of the other matrices of each layer; empty: host memory.
    """
    pairs = {}
    for target in targets:
        count = (target.experts,) if target.experts else ()
        bound = 1 / math.sqrt(target.columns)
        generator = torch.Generator().manual_seed(seed_of(seed, target.path))
        a = torch.empty((*count, rank, target.columns)).uniform_(-bound, bound, generator=generator)
        b = torch.zeros((*count, target.rows, rank))
        on_host = target.experts or not layer_devices
        place = torch.device("cpu") if on_host else layer_devices[target.layer]
        pairs[target] = LoraPair(
            a.to(place, dtype).requires_grad_(), b.to(place, dtype).requires_grad_()
        )
    return Lora(rank, scale, pairs)


def seed_of(*key: object) -> int:
    """A seed for a generator, as good as independent for each key."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Dropout:
    """Which inputs of A are dropped: a function of the key and of the place in the model, so that
    a layer that is computed again, or a run that is resumed, drops the same.

    Attributes:
        probability: of each element.
        key: of one forward pass: seed, step and number of the batch in it.
    """

    probability: float
    key: tuple[int, ...]

    def drop(self, x_TM: Tensor, layer: int, part: str) -> Tensor:
        """`x` with some elements 0, and the others scaled up."""
        if not self.probability:
            return x_TM
        generator = torch.Generator().manual_seed(seed_of(*self.key, layer, part))
        keep = torch.rand(x_TM.shape, generator=generator) >= self.probability
        return x_TM * keep.to(x_TM.device, x_TM.dtype) / (1 - self.probability)


NO_DROPOUT = Dropout(0.0, ())
