"""The requests of a trace's file, as options change them."""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from math import inf, isinf
from pathlib import Path

from inlay.core.errors import ConfigError, TraceError
from inlay.sim import transform
from inlay.sim.formats import read_chunks
from inlay.sim.known_names import KnownNames
from inlay.sim.trace import Trace


def parts_of(
    file: Path,
    form: str,
    block_tokens: int,
    *,
    until_s: float = inf,
    lengths: float = 1.0,
    rate: float = 1.0,
    known: KnownNames | None = None,
) -> Iterator[Trace]:
    """Consecutive parts of a trace, read when they are asked for.

    Args:
        form: a name of `formats.FORMATS`, or `auto`.
        until_s: what comes later is left out.
        known: is told of each part as it is read.
        lengths, rate: how many times as long prompts and answers are, and as fast requests come.

    Raises:
        TraceError: something is wrong with a line, or there is no request.
        ConfigError: an option is out of its range.
    """
    for name, value in (("--until", until_s), ("--lengths", lengths), ("--rate", rate)):
        if not value > 0 or (isinf(value) and name != "--until"):
            raise ConfigError(f"{name} must be above 0 and finite, got {value:g}")
    parts = read_chunks(file, format=form, block_tokens=block_tokens, known=known)
    first = next(parts, None)
    if first is None:
        raise TraceError(f"{file} has no requests")
    parts = chain([first], parts)
    if until_s < inf:
        parts = transform.cut_parts(parts, 0.0, until_s)
    if lengths != 1:
        parts = map(partial(transform.scale_lengths, factor=lengths), parts)
    if rate != 1:
        parts = map(partial(transform.scale_rate, factor=rate), parts)
    return parts
