"""Names of Mooncake that have nothing behind them here: each says what to use in its place.

A method returns what a failed call returns there, and logs; a class raises when it is made. So a
caller hears what is missing where it calls it, and not from an AttributeError.
"""

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from inlay.connect.mooncake.codes import Code, logger

_WITH_TP = "use the call whose name ends in _with_tp, with tp_rank, tp_size and split_dim"
_BLOCKING = "use the call without _on_cuda, which takes device addresses, after synchronizing"


def absent(name: str, failed: Callable[..., Any], instead: str) -> Callable[..., Any]:
    """A method of this name that does nothing but log `instead`, and return `failed(...)`."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        logger.warning("%s is not there: %s", name, instead)
        return failed(*args, **kwargs)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"Not there: {instead}."
    return method


def absent_class(name: str, instead: str) -> type:
    """A class of this name that raises RuntimeError when it is made."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{name} is not there: {instead}")

    return type(name, (), {"__init__": refuse, "__doc__": f"Not there: {instead}."})


def absent_function(name: str, instead: str) -> Callable[..., NoReturn]:
    """A function of this name that raises RuntimeError."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"{name} is not there: {instead}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Not there: {instead}."
    return refuse


def _refused(*args: Any, **kwargs: Any) -> int:
    return int(Code.INVALID_PARAMS)


def _refused_each(keys: Sequence[str], *args: Any, **kwargs: Any) -> list[int]:
    return [int(Code.INVALID_PARAMS)] * len(keys)


def _none(*args: Any, **kwargs: Any) -> None:
    return None


def _none_each(keys: Sequence[str], *args: Any, **kwargs: Any) -> list[None]:
    return [None] * len(keys)


def _not_mounted(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return {"ret": int(Code.INTERNAL_ERROR), "segment_ids": []}


def _unmounted(segment_ids: Sequence[str], *args: Any, **kwargs: Any) -> int:
    return int(Code.INTERNAL_ERROR if segment_ids else Code.OK)


def _failed(*args: Any, **kwargs: Any) -> int:
    return int(Code.INTERNAL_ERROR)


class AbsentStoreCalls:
    """Calls of a store that are not there."""

    mount_segment = absent(
        "mount_segment",
        _not_mounted,
        "use allocate_and_mount_segment, as a store's memory is its own",
    )
    unmount_segment = absent(
        "unmount_segment",
        _unmounted,
        "use unmount_and_free_segment, with what allocate_and_mount_segment returned",
    )


class AbsentEngineCalls:
    """Calls of an engine that are not there: those of Mooncake's builds for CUDA."""


for _verb in ("put", "upsert"):
    for _suffix in ("", "_from"):
        _name = f"{_verb}_tensor_with_parallelism{_suffix}"
        setattr(AbsentStoreCalls, _name, absent(_name, _refused, _WITH_TP))
        _name = f"batch_{_name}"
        setattr(AbsentStoreCalls, _name, absent(_name, _refused_each, _WITH_TP))
for _suffix in ("", "_into"):
    _name = f"get_tensor_with_parallelism{_suffix}"
    setattr(AbsentStoreCalls, _name, absent(_name, _none, _WITH_TP))
    _name = f"batch_{_name}"
    setattr(AbsentStoreCalls, _name, absent(_name, _none_each, _WITH_TP))
for _verb in ("write", "read"):
    for _name in (f"transfer_{_verb}_on_cuda", f"batch_transfer_{_verb}_on_cuda"):
        setattr(AbsentEngineCalls, _name, absent(_name, _failed, _BLOCKING))
