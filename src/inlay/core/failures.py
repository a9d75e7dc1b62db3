"""Errors as messages between processes, and back."""

from collections.abc import Iterable, Iterator

from inlay.core.errors import EngineError, InlayError, NotPausedError, RequestError
from inlay.core.messages import EngineFailure, RequestOutput


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


def not_running(request_id: str) -> RequestError:
    """Somebody wants to pause or resume a request that is not there, by a client's name of it."""
    return RequestError(
        f"no request {request_id!r} is running here: it has ended, or its id is another",
        "request_ids",
    )


def not_paused(refused: Iterable[str]) -> NotPausedError:
    """Somebody wants to resume what does not go on: why each, in words."""
    return NotPausedError(f"nothing is resumed: {'; '.join(refused)}", "handles")


def failure_message(error: InlayError) -> EngineFailure:
    """Why an engine cannot start, or go on."""
    return EngineFailure(error.code, str(error))


def _kinds(base: type[InlayError]) -> Iterator[type[InlayError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


_KINDS = {kind.code: kind for kind in _kinds(InlayError)}
