"""The numbers that Mooncake's calls return, and which of them stands for which error of ours."""

import enum
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from inlay.core.errors import (
    ArgumentError,
    ConfigError,
    InlayError,
    KeyNotFound,
    ObjectDamaged,
    ObjectExists,
    StoreClosed,
    StoreFull,
    StoreTimeout,
    StoreUnavailable,
    TransferError,
)

logger = logging.getLogger("inlay.connect.mooncake")

S = TypeVar("S")
P = ParamSpec("P")


class Code(enum.IntEnum):
    """Return codes of the store, by Mooncake's names."""

    OK = 0
    INTERNAL_ERROR = -1
    NO_AVAILABLE_HANDLE = -200
    INVALID_PARAMS = -600
    ILLEGAL_CLIENT = -601
    OBJECT_NOT_FOUND = -704
    OBJECT_ALREADY_EXISTS = -705
    OBJECT_HAS_LEASE = -706
    TRANSFER_FAIL = -800
    CHECKSUM_MISMATCH = -801
    RPC_FAIL = -900
    RPC_TIMEOUT = -901
    TASK_NOT_FOUND = -1400


# The first that fits counts.
_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (KeyNotFound, Code.OBJECT_NOT_FOUND),
    (ObjectExists, Code.OBJECT_ALREADY_EXISTS),
    (StoreFull, Code.NO_AVAILABLE_HANDLE),
    (StoreTimeout, Code.RPC_TIMEOUT),
    (StoreUnavailable, Code.RPC_FAIL),
    (ObjectDamaged, Code.CHECKSUM_MISMATCH),
    (StoreClosed, Code.ILLEGAL_CLIENT),
    (ArgumentError, Code.INVALID_PARAMS),
    (ConfigError, Code.INVALID_PARAMS),
    (TransferError, Code.TRANSFER_FAIL),
)


def code_of(error: Exception) -> int:
    """The code that a caller gets in the place of an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return int(code)
    return int(Code.INTERNAL_ERROR)


def told(error: InlayError, what: str) -> int:
    """`code_of`, with the message in the log: callers see a number alone. Misses are not logged."""
    code = code_of(error)
    if code != Code.OBJECT_NOT_FOUND:
        logger.warning("%s returns %d: %s", what, code, error)
    return code


def coded(call: Callable[Concatenate[S, P], int]) -> Callable[Concatenate[S, P], int]:
    """A method that returns the code of what it raises."""

    @functools.wraps(call)
    def wrapper(self: S, /, *args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return call(self, *args, **kwargs)
        except InlayError as error:
            return told(error, call.__name__)

    return wrapper


def coded_each(
    call: Callable[Concatenate[S, Sequence[str], P], list[int]],
) -> Callable[Concatenate[S, Sequence[str], P], list[int]]:
    """A method of many keys that returns for each of them the code of what it raises."""

    @functools.wraps(call)
    def wrapper(self: S, keys: Sequence[str], /, *args: P.args, **kwargs: P.kwargs) -> list[int]:
        try:
            return call(self, keys, *args, **kwargs)
        except InlayError as error:
            return [told(error, call.__name__)] * len(keys)

    functools.update_wrapper(wrapper, call)
    return wrapper


def code_of_result(result: Any) -> int:
    """What became of one key of a call with many: its size, or the code for an error or a miss."""
    if result is None:
        return int(Code.OBJECT_NOT_FOUND)
    if isinstance(result, InlayError):
        return told(result, "a read")
    return int(result)


def check_equal(**lengths: int) -> None:
    """Raise `ArgumentError` where lists that belong together differ in length."""
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise ArgumentError(f"lists must be equally long: {listed}")
