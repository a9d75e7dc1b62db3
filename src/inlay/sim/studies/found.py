"""What a study comes to."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Found:
    """One figure.

    Attributes:
        name: of what was measured.
        value: as simulated.
        published: the paper's, where it has this point.
        limit: what no policy could pass, and its name.
    """

    name: str
    value: float
    published: float | None = None
    limit: tuple[str, float] | None = None
