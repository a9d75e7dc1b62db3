"""Weight formats: their names, and what they do to weights and activations."""

from dataclasses import dataclass

from inlay.core.errors import ArgumentError

PANEL = 64
"""Output columns of a packed panel."""

MAX_WHOLE_ROW = 65536
"""Longest row of `int8`, whose products are summed in 32 bits."""


@dataclass(frozen=True)
class Format:
    """How a format stores weights; the layout is in `docs/kernels.md`.

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

    def padded(self, k: int) -> int:
        """Length of a packed row of `k` values."""
        return -(-k // self.k_multiple) * self.k_multiple

    def groups(self, k: int) -> int:
        """Scales of a row of `k` values; 1 for formats without."""
        return self.padded(k) // self.group if self.group > 0 else 1


_ALL = {
    f.name: f
    for f in (
        Format("float32", 32, 0, 1),
        Format("bfloat16", 16, 0, 32),
        Format("int8", 8, -1, 64),
        Format("int8:g32", 8, 32, 32),
        Format("int4:g128", 4, 128, 128),
        Format("int4:g64", 4, 64, 64),
        Format("int4:g32", 4, 32, 32),
    )
}

FORMATS = tuple(_ALL)
"""Names of all formats, the most exact first."""


def format_named(name: str) -> Format:
    """The format of that name.

    Raises:
        ArgumentError: there is none.
    """
    if name not in _ALL:
        known = ", ".join(f"'{known}'" for known in FORMATS)
        raise ArgumentError(f"format: must be one of {known}; got {name!r}")
    return _ALL[name]
