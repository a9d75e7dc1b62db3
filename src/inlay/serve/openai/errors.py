"""Errors in the OpenAI form: `{"error": {"message", "type", "param", "code"}}`."""

import logging
import math

import msgspec
from starlette.responses import Response

from inlay.core.errors import (
    AdmissionError,
    ArgumentError,
    InlayError,
    NoInstanceError,
    OverloadedError,
    RequestError,
)

_log = logging.getLogger(__name__)

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class ModelNameError(RequestError):
    """The request names a model that this server does not serve."""

    code = "model_not_found"
    http_status = 404


class BodyTooLargeError(RequestError):
    """The request's body is over the server's limit."""

    code = "request_too_large"
    http_status = 413


class NotReadyError(InlayError):
    """The server is starting or stopping."""

    code = "not_ready"
    http_status = 503


class ServerStoppingError(InlayError):
    """The server was stopped while the request ran; what had been generated was sent."""

    code = "server_stopping"
    http_status = 503


class AuthenticationError(RequestError):
    """The API key is missing or wrong."""

    code = "invalid_api_key"
    http_status = 401


def error_object(
    status: int, message: str, code: str | None, param: str | None
) -> dict[str, object]:
    """The body of an error answer, also sent as an event when a stream fails."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: BaseException) -> tuple[int, dict[str, object], dict[str, str]]:
    """Status, body and extra headers for an error that ended a request.

    Anything that is not an `InlayError` is a bug of ours, and so is a call with a wrong argument,
    since what clients do wrong is a `RequestError`: it is logged with its traceback, and the client
    learns only that it happened.
    """
    if not isinstance(error, InlayError) or isinstance(error, ArgumentError):
        _log.error("a request failed unexpectedly", exc_info=error)
        message = f"internal error ({type(error).__name__}); the server's log has the details"
        return 500, error_object(500, message, "internal_error", None), {}
    headers: dict[str, str] = {}
    if isinstance(error, OverloadedError | AdmissionError | NoInstanceError):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    elif error.http_status == 503:
        headers["Retry-After"] = "5"
    param = error.param if isinstance(error, RequestError) else None
    body = error_object(error.http_status, str(error), error.code, param)
    return error.http_status, body, headers


def error_response(error: BaseException) -> Response:
    """The HTTP answer for an error."""
    status, body, headers = describe(error)
    return json_response(body, status=status, headers=headers)


def json_response(
    body: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A JSON answer, encoded by msgspec."""
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        headers=headers,
        media_type="application/json",
    )
