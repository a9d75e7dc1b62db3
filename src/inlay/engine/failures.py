"""What a failed step says, and weights that did not come."""

import re

from inlay.core.errors import EngineError, InlayError
from inlay.core.units import format_bytes, size_to_set


def step_failure(error: Exception, *, tokens: int, pool_bytes: int) -> EngineError:
    """Why a request's step failed; where memory ran out, with the settings to try.

    Args:
        tokens: that the step computed.
        pool_bytes: of all KV pages.
    """
    lacking = _ASKED.search(str(error))
    if lacking is None and not isinstance(error, MemoryError):
        return EngineError(f"a step failed: {error!r}")
    advice = []
    if tokens > 1:
        half = tokens // 2
        advice.append(f"scheduler.prefill_chunk={half}, which halves what a step takes")
    if lacking is not None:
        lacking_bytes = int(float(lacking[1]) * _UNITS[lacking[2].lower()])
        if lacking_bytes < pool_bytes:
            size = size_to_set(pool_bytes - lacking_bytes, up=False)
            what = format_bytes(lacking_bytes)
            advice.append(f"cache.memory={size}, which leaves the {what} that were lacking")
    advice.append("a weight_format of fewer bits")
    what = f"a step of {tokens} tokens ran out of memory"
    return EngineError(f"{what}: set {', or '.join(advice)} ({error})")


def load_failure(error: Exception) -> InlayError:
    """Why weights did not come, as loading them before serving would have said it."""
    if isinstance(error, InlayError):
        return error
    return EngineError(f"the weights cannot be loaded: {error!r}")


# What PyTorch and NumPy say of memory that they did not get.
_ASKED = re.compile(r"(?i)(?:tried|unable) to allocate ([\d.]+) (bytes|[KMGTPE]iB)")
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"pib": 2**50, "eib": 2**60}
