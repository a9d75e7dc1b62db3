import pytest

from inlay.core.errors import (
    AdmissionError,
    ContextLengthError,
    EngineError,
    ModelFileError,
    OverloadedError,
    RequestError,
)
from inlay.core.failures import error_of, failure_message, failure_output, restore
from inlay.core.messages import RequestOutput


@pytest.mark.parametrize(
    "error",
    [
        RequestError("bad", "top_p"),
        ContextLengthError("too long", "prompt"),
        OverloadedError("full"),
        AdmissionError("too much"),
        EngineError("broken"),
    ],
)
def test_errors_keep_their_class(error):
    output = failure_output("a", error)
    assert output.finished
    restored = error_of(output)
    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert getattr(restored, "param", None) == getattr(error, "param", None)


def test_start_failures_keep_their_class():
    message = failure_message(ModelFileError("damaged"))
    assert isinstance(restore(message.code, message.message), ModelFileError)


def test_unknown_codes_are_engine_errors():
    assert type(restore("from_the_future", "hm")) is EngineError


def test_no_error_is_none():
    assert error_of(RequestOutput(request_id="a")) is None
