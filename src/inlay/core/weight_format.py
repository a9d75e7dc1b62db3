"""Weight formats of the CPU kernels: their names, and what they do to weights and activations.

Knows no kernels: `docs/kernels.md` has the layouts, `native/kernels/formats.h` the same table.
"""

from dataclasses import dataclass

from inlay.core.errors import ArgumentError

MAX_WHOLE_ROW = 65536
"""Longest row of `int8`, whose products are summed in 32 bits."""


@dataclass(frozen=True)
class WeightFormat:
    """How a format stores weights.

    Attributes:
        bits: per weight.
        group: weights of a row that share a scale; 0 without scales, -1 for the whole row.
        k_multiple: rows are padded with zeros to a multiple of this.
    """

    name: str
    bits: int
    group: int
    k_multiple: int

    @property
    def is_integer(self) -> bool:
        """Weights are integers times a bf16 scale, and activations become int8."""
        return self.group != 0

    @property
    def bias(self) -> int:
        """Added to integers in memory, which go from -bias to bias - 1."""
        return 1 << (self.bits - 1)

    @property
    def bytes_per_weight(self) -> float:
        """With the bf16 scales of groups; the one of a whole row is not counted."""
        return self.bits / 8 + (2 / self.group if self.group > 0 else 0)

    def padded(self, k: int) -> int:
        """Length of a packed row of `k` values."""
        return -(-k // self.k_multiple) * self.k_multiple

    def groups(self, k: int) -> int:
        """Scales of a row of `k` values; 1 for formats without."""
        return self.padded(k) // self.group if self.group > 0 else 1


_ALL = {
    f.name: f
    for f in (
        WeightFormat("float32", 32, 0, 1),
        WeightFormat("bfloat16", 16, 0, 32),
        WeightFormat("int8", 8, -1, 64),
        WeightFormat("int8:g32", 8, 32, 32),
        WeightFormat("int4:g128", 4, 128, 128),
        WeightFormat("int4:g64", 4, 64, 64),
        WeightFormat("int4:g32", 4, 32, 32),
    )
}

FORMATS = tuple(_ALL)
"""Names of all formats, the most exact first."""


def format_named(name: str) -> WeightFormat:
    """The format of that name.

    Raises:
        ArgumentError: there is none.
    """
    if name not in _ALL:
        known = ", ".join(f"'{known}'" for known in FORMATS)
        raise ArgumentError(f"format: must be one of {known}; got {name!r}")
    return _ALL[name]
