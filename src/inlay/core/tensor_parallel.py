"""How the processes of a tensor parallel model divide its layers, without torch.

Attention is split by heads, MLPs and experts by their width, the output matrix by the vocabulary.
Norms, routers and the latents of latent attention are the same in all ranks. So each rank has the
same work at every size of a step; experts divided whole would have to wait for the rank whose
experts most tokens chose.

Source: Megatron-LM (arXiv 1909.08053), section 3.
"""

from dataclasses import dataclass, replace

from inlay.core.errors import ConfigError
from inlay.core.model_shape import ModelShape

_MOST_RANKS = 64


@dataclass(frozen=True)
class Rank:
    """One of the processes that share each layer; number 0 has the engine, and the host's experts.

    Attributes:
        number: 0 up to `degree`.
        degree: how many there are; 1: nothing is shared.
    """

    number: int = 0
    degree: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.degree:
            raise ConfigError(f"rank {self.number} is not in 0..{self.degree - 1}")

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.degree == 1

    @property
    def is_first(self) -> bool:
        """Whether it adds what all of them would add, such as biases after a sum."""
        return self.number == 0

    def part(self, count: int) -> range:
        """Its own of so many rows, heads or columns; of parts that are not alike the last are
        larger by one.
        """
        return range(count * self.number // self.degree, count * (self.number + 1) // self.degree)

    def kv_part(self, kv_heads: int) -> range:
        """The heads of keys and values that its queries look at; several ranks may have the same
        one.
        """
        first = kv_heads * self.number // self.degree
        return range(first, first + max(1, kv_heads // self.degree))


ALONE = Rank()


def shape_of_rank(shape: ModelShape, degree: int) -> ModelShape:
    """What each of so many ranks computes. `vocab` stays whole: see `Rank.part`.

    Raises:
        ConfigError: something cannot be divided; says what, and which numbers of ranks can.
    """
    if degree == 1:
        return shape
    undivided = _undivided(shape, degree)
    if undivided:
        possible = [1, *(n for n in range(2, _MOST_RANKS + 1) if not _undivided(shape, n))]
        raise ConfigError(
            f"placement.tensor_parallel={degree} does not divide this model: {undivided}; "
            f"possible are {', '.join(map(str, possible))}"
        )
    return replace(
        shape,
        heads=shape.heads // degree,
        kv_heads=max(1, shape.kv_heads // degree),
        intermediate=shape.intermediate // degree,
        moe_intermediate=shape.moe_intermediate // degree,
        shared_intermediate=shape.shared_intermediate // degree,
    )


def _undivided(shape: ModelShape, degree: int) -> str:
    """What so many ranks cannot share, empty where they can."""
    if degree < 1:
        return "there is at least one process"
    if shape.heads % degree:
        return f"its {shape.heads} heads"
    if shape.kv_heads % degree and degree % shape.kv_heads:
        return f"its {shape.kv_heads} heads of keys and values"
    if shape.qk_norm == "whole":
        return "norms of q and k that span all of its heads"
    dense = len(shape.sparse_layers) < shape.layers
    for what, width in (
        ("MLPs", shape.intermediate if dense else 0),
        ("experts", shape.moe_intermediate),
        ("shared experts", shape.shared_intermediate),
    ):
        if width % degree:
            return f"the width of its {what}, {width}"
        group = _group_of(shape, what)
        if group and width % (degree * group):
            return (
                f"the width of its {what}, {width}, are {-(-width // group)} groups of {group} "
                "weights that share a scale"
            )
    values = shape.heads * shape.value_dim
    group = _group_of(shape, "attention")
    if group and values % (degree * group):
        return f"its {shape.heads} heads have values of {values} in all, in groups of {group}"
    return ""


def _group_of(shape: ModelShape, part: str) -> int:
    """Weights that share a scale in the files; 0: they are floats."""
    stored = shape.quantization
    if stored is None:
        return 0
    held = {"experts": stored.weight_format, "attention": stored.attention}
    return 0 if held.get(part, stored.rest) is None else stored.group
