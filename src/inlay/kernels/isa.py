"""Which kernel variant runs, and what this processor offers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from inlay.core.errors import ArgumentError
from inlay.kernels import _backend


def native_problem() -> str | None:
    """Why the NumPy references serve instead of the compiled kernels; None when they do not."""
    return _backend.problem


@dataclass(frozen=True)
class IsaVariant:
    """One variant of the kernels.

    Attributes:
        name: its name, for `INLAY_ISA`.
        problem: why it cannot run here; empty if it can.
        integer_products: what multiplies int8 activations and integer weights.
        bf16_products: what multiplies bf16.
        fp32: what does the rest, attention among it.
    """

    name: str
    problem: str
    integer_products: str
    bf16_products: str
    fp32: str


def isa_variants() -> list[IsaVariant]:
    """All variants in this build, slowest first; empty without the extension."""
    if not _backend.is_native:
        return []
    return [IsaVariant(*row) for row in _backend.ops.isa_variants()]


def compiled_isas() -> list[str]:
    """Variants that this build contains, slowest first; empty without the extension."""
    return [variant.name for variant in isa_variants()]


def available_isas() -> list[str]:
    """Compiled variants that processor and operating system allow, slowest first."""
    return [variant.name for variant in isa_variants() if not variant.problem]


def selected_isa() -> str:
    """The variant in use: `INLAY_ISA` if set, else the best available; `numpy` without extension.

    Raises:
        ArgumentError: `INLAY_ISA` names an unknown variant, or one beyond this processor.
    """
    return str(_backend.ops.selected_isa()) if _backend.is_native else "numpy"


def cpu_features() -> list[str]:
    """Processor features that kernels ask for, as far as the operating system allows their use."""
    return list(_backend.ops.cpu_features()) if _backend.is_native else []


@contextmanager
def force_isa(name: str) -> Iterator[None]:
    """Run with another variant, for tests and benchmarks. Process-wide.

    Raises:
        ArgumentError: the variant is unknown, or beyond this processor.
    """
    if not _backend.is_native:
        raise ArgumentError(f"isa: {name!r} needs the compiled extension; {_backend.problem}")
    before = selected_isa()
    try:
        _backend.ops.request_isa(name)
        _backend.ops.selected_isa()
        yield
    finally:
        _backend.ops.request_isa(before)
