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
        bits: per weight; of blocks, of the integers that kernels make from them.
        group: weights of a row that share a scale; 0 without scales, -1 for the whole row.
        k_multiple: rows are padded with zeros to a multiple of this.
        scale: dtype of the scales, `bf16`, `float32` or `e8m0` (a power of two in a byte), or
            `bf16 and zero` (with a zero point in units of 1 / 256, of 16 bits); `in block` where a
            block's own bits say them; empty without.
        block, block_bytes: weights of a block of a GGUF type, and its size; 0 without blocks.
    """

    name: str
    bits: int
    group: int
    k_multiple: int
    scale: str = ""
    block: int = 0
    block_bytes: int = 0

    @property
    def is_integer(self) -> bool:
        """Weights are integers times a scale, and activations become int8."""
        return self.scale in ("bf16", "bf16 and zero", "in block")

    @property
    def has_zeros(self) -> bool:
        """A zero point is taken from the integers of a group, which begin at 0."""
        return self.scale == "bf16 and zero"

    @property
    def is_small_float(self) -> bool:
        """Weights are floats of 8 or 4 bits times a scale, and activations become bf16."""
        return self.scale in ("float32", "e8m0")

    @property
    def bias(self) -> int:
        """Added to integers in memory, where it makes the least of them 0."""
        return 0 if self.has_zeros else 1 << (self.bits - 1)

    @property
    def scale_columns(self) -> int:
        """Numbers of a group beside its integers or codes: its scale, and its zero point."""
        return 2 if self.has_zeros else 1

    @property
    def scale_bytes(self) -> int:
        """Of one scale, with its zero point."""
        sizes = {"": 0, "bf16": 2, "float32": 4, "e8m0": 1, "bf16 and zero": 4, "in block": 0}
        return sizes[self.scale]

    @property
    def bytes_per_weight(self) -> float:
        """With the scales of groups; the one of a whole row is not counted."""
        if self.block:
            return self.block_bytes / self.block
        return self.bits / 8 + (self.scale_bytes / self.group if self.group > 0 else 0)

    def padded(self, k: int) -> int:
        """Length of a packed row of `k` values."""
        return -(-k // self.k_multiple) * self.k_multiple

    def row_bytes(self, k: int) -> int:
        """What a packed row of `k` values takes, scales included."""
        if self.block:
            return self.padded(k) // self.block * self.block_bytes
        return self.padded(k) * self.bits // 8 + self.groups(k) * self.scale_bytes

    def groups(self, k: int) -> int:
        """Scales of a row of `k` values; 1 for formats without."""
        return self.padded(k) // self.group if self.group > 0 else 1


_ALL = {
    f.name: f
    for f in (
        WeightFormat("float32", 32, 0, 1),
        WeightFormat("bfloat16", 16, 0, 32),
        WeightFormat("float16", 16, 0, 2),
        WeightFormat("int8", 8, -1, 64, "bf16"),
        WeightFormat("int8:g32", 8, 32, 32, "bf16"),
        WeightFormat("fp8:g128", 8, 128, 128, "float32"),
        WeightFormat("uint4:g32", 4, 32, 32, "bf16 and zero"),
        WeightFormat("int4:g128", 4, 128, 128, "bf16"),
        WeightFormat("int4:g64", 4, 64, 64, "bf16"),
        WeightFormat("int4:g32", 4, 32, 32, "bf16"),
        WeightFormat("mxfp4", 4, 32, 32, "e8m0"),
    )
}

FORMATS = tuple(_ALL)
"""Names of all formats that floats can be held in, those of many bits first."""


def _block(
    name: str, bits: int, group: int, block: int, block_bytes: int
) -> tuple[str, WeightFormat]:
    return name, WeightFormat(name, bits, group, block, "in block", block, block_bytes)


_BLOCKS = dict(
    (
        _block("q8_0", 8, 32, 32, 34),
        _block("q6_k", 6, 16, 256, 210),
        _block("q5_1", 5, 32, 32, 24),
        _block("q5_0", 5, 32, 32, 22),
        _block("q5_k", 5, 32, 256, 176),
        _block("q4_1", 4, 32, 32, 20),
        _block("q4_0", 4, 32, 32, 18),
        _block("q4_k", 4, 32, 256, 144),
        _block("iq4_nl", 8, 32, 32, 18),
        _block("iq4_xs", 8, 32, 256, 136),
        _block("nvfp4", 5, 16, 64, 36),
        _block("q3_k", 3, 16, 256, 110),
        _block("iq3_s", 7, 32, 256, 110),
        _block("iq3_xxs", 7, 32, 256, 98),
        _block("q2_k", 2, 16, 256, 84),
        _block("iq2_s", 7, 16, 256, 82),
        _block("iq2_xs", 7, 16, 256, 74),
        _block("iq2_xxs", 7, 32, 256, 66),
        _block("tq2_0", 2, 32, 256, 66),
        _block("tq1_0", 2, 32, 256, 54),
        _block("iq1_m", 5, 16, 256, 56),
        _block("iq1_s", 5, 32, 256, 50),
    )
)

BLOCK_FORMATS = tuple(_BLOCKS)
"""Names of the types of GGUF files whose blocks kernels multiply with as they are. Nothing becomes
one: weights are held so where their file has them so.
"""


def format_named(name: str) -> WeightFormat:
    """The format of that name.

    Raises:
        ArgumentError: there is none.
    """
    if name in _BLOCKS:
        return _BLOCKS[name]
    if name not in _ALL:
        known = ", ".join(f"'{known}'" for known in FORMATS)
        raise ArgumentError(f"format: must be one of {known}; got {name!r}")
    return _ALL[name]
