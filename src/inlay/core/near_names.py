"""What somebody may have meant who wrote a name that is not known."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean a or b?`, of known names that are spelled much like it; empty if none is.

    Case does not count. Three names at most, the nearest first.
    """
    lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), lower, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(lower[one] for one in near)}?" if near else ""
