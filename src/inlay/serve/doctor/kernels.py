"""Which CPU kernels would run, as `inlay.kernels` itself chooses them."""

from dataclasses import dataclass

from inlay.core.errors import InlayError
from inlay.core.settings import Settings
from inlay.kernels.isa import IsaVariant


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """The choice of kernels.

    Attributes:
        native: the compiled extension is in use; `why_not` says why it is not.
        selected: the variant that runs: `numpy` without the extension, None if the choice fails.
        available: variants that this machine can run, slowest first.
        compiled: variants in this build.
        variants: what they compute with, and why some cannot run here.
        features: processor features that kernels ask for and the operating system allows.
        threads: threads of the kernels.
        nodes: NUMA nodes that they are spread over.
        forced: value of INLAY_ISA.
        problem: why no kernel can run.
        switched_off: INLAY_NATIVE=0 is set.
    """

    native: bool
    why_not: str | None
    selected: str | None
    available: tuple[str, ...]
    compiled: tuple[str, ...]
    variants: tuple[IsaVariant, ...]
    features: tuple[str, ...]
    threads: int
    nodes: int
    forced: str | None
    problem: str | None
    switched_off: bool


def read_kernels(settings: Settings) -> Kernels:
    """Ask the kernels package."""
    from inlay.kernels import isa, threads

    problem = selected = None
    try:
        selected = isa.selected_isa()
    except InlayError as error:
        problem = str(error)
    return Kernels(
        native=isa.native_problem() is None,
        why_not=isa.native_problem(),
        selected=selected,
        available=tuple(isa.available_isas()),
        compiled=tuple(isa.compiled_isas()),
        variants=tuple(isa.isa_variants()),
        features=tuple(isa.cpu_features()),
        threads=threads.num_threads(),
        nodes=len(threads.topology()),
        forced=settings.isa,
        problem=problem,
        switched_off=not settings.native,
    )
