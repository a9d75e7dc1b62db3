"""Errors as messages between processes, and back; and what a failed step says."""

import re
from collections.abc import Iterator

from inlay.core.errors import EngineError, InlayError, RequestError
from inlay.core.messages import EngineFailure, RequestOutput
from inlay.core.units import format_bytes, size_to_set


def failure_output(request_id: str, error: InlayError) -> RequestOutput:
    """The last output of a request that an error ended."""
    return RequestOutput(
        request_id=request_id,
        finished=True,
        error=str(error),
        error_code=error.code,
        error_param=error.param if isinstance(error, RequestError) else None,
    )


def error_of(output: RequestOutput) -> InlayError | None:
    """The error that an output carries, as the class it was raised with."""
    if output.error is None:
        return None
    return restore(output.error_code or "", output.error, output.error_param)


def restore(code: str, message: str, param: str | None = None) -> InlayError:
    """Make an error from its code and message; an unknown code gives an `EngineError`."""
    kind = _KINDS.get(code, EngineError)
    if issubclass(kind, RequestError):
        return kind(message, param)
    return kind(message)


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


def failure_message(error: InlayError) -> EngineFailure:
    """Why an engine cannot start, or go on."""
    return EngineFailure(error.code, str(error))


def _kinds(base: type[InlayError]) -> Iterator[type[InlayError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


# What PyTorch and NumPy say of memory that they did not get.
_ASKED = re.compile(r"(?i)(?:tried|unable) to allocate ([\d.]+) (bytes|[KMGTPE]iB)")
_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_UNITS |= {"pib": 2**50, "eib": 2**60}
_KINDS = {kind.code: kind for kind in _kinds(InlayError)}
