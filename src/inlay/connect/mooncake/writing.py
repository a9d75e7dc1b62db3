"""Calls that put objects."""

from collections.abc import Sequence
from typing import Any

from inlay.connect.mooncake.codes import Code, check_equal, code_of, coded, coded_each, told
from inlay.connect.mooncake.opening import Opening
from inlay.connect.mooncake.replicas import DEFAULT, ReplicateConfig
from inlay.core.errors import ArgumentError, InlayError
from inlay.store import PutOptions, Store

Parts = Sequence[Any]  # buffers, or pairs (address, bytes)

# How long a put into a full store waits for room; callers of Mooncake's hear of it as soon.
_ROOM_S = 1.0
_SLOWEST = 100e6  # bytes per second


class Writing(Opening):
    """`put*` keep what is there, and say 0; `upsert*` replace it.

    Values must not be empty (-600). Calls of many keys return a code for each, in their order.
    """

    @coded
    def put(self, key: str, value: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Store the bytes of a buffer. Raises TypeError where it is none."""
        return self._put_one(key, [memoryview(value)], config, False)

    @coded
    def upsert(self, key: str, value: Any, config: ReplicateConfig = DEFAULT) -> int:
        """As `put`, and replace."""
        return self._put_one(key, [memoryview(value)], config, True)

    @coded
    def put_parts(self, key: str, *parts: Any, config: ReplicateConfig = DEFAULT) -> int:
        """Store buffers one behind the other; nothing for no buffers."""
        if not parts:
            return int(Code.OK)
        return self._put_one(key, [memoryview(part) for part in parts], config, False)

    @coded
    def upsert_parts(self, key: str, *parts: Any, config: ReplicateConfig = DEFAULT) -> int:
        """As `put_parts`, and replace."""
        if not parts:
            return int(Code.OK)
        return self._put_one(key, [memoryview(part) for part in parts], config, True)

    @coded
    def put_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> int:
        """Store many; the first code that is not 0, or 0."""
        parts = [[memoryview(value)] for value in values]
        return _first(self._put_each(keys, parts, config, False))

    @coded
    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> int:
        """As `put_batch`, and replace."""
        parts = [[memoryview(value)] for value in values]
        return _first(self._put_each(keys, parts, config, True))

    @coded
    def put_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT
    ) -> int:
        """Store `size` bytes at an address, without a copy on the way."""
        return self._put_one(key, [self.buffer_at(buffer_ptr, size)], config, False)

    @coded
    def upsert_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig = DEFAULT
    ) -> int:
        """As `put_from`, and replace."""
        return self._put_one(key, [self.buffer_at(buffer_ptr, size)], config, True)

    @coded
    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig = DEFAULT,
    ) -> int:
        """Store one value: the metadata's bytes, and the buffer's behind them."""
        parts = [
            self.buffer_at(metadata_buffer_ptr, metadata_size),
            self.buffer_at(buffer_ptr, size),
        ]
        return self._put_one(key, parts, config, False)

    @coded_each
    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """`put_from` of many, with one question to the master."""
        check_equal(keys=len(keys), buffer_ptrs=len(buffer_ptrs), sizes=len(sizes))
        parts = [[self.buffer_at(*one)] for one in zip(buffer_ptrs, sizes, strict=True)]
        return self._put_each(keys, parts, config, False)

    @coded_each
    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """As `batch_put_from`, and replace."""
        check_equal(keys=len(keys), buffer_ptrs=len(buffer_ptrs), sizes=len(sizes))
        parts = [[self.buffer_at(*one)] for one in zip(buffer_ptrs, sizes, strict=True)]
        return self._put_each(keys, parts, config, True)

    @coded_each
    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig = DEFAULT,
    ) -> list[int]:
        """Of each key, buffers one behind the other make up the value."""
        check_equal(keys=len(keys), all_buffer_ptrs=len(all_buffer_ptrs), all_sizes=len(all_sizes))
        return self._put_each(keys, self.buffers_at(all_buffer_ptrs, all_sizes), config, False)

    def _put_one(self, key: str, parts: Parts, config: ReplicateConfig, replaces: bool) -> int:
        if not isinstance(key, str):
            raise TypeError(f"a key is a str, got {type(key).__name__}")
        store = self.opened
        time_s = _ROOM_S + _checked_bytes(parts) / _SLOWEST
        options = config.options(_group(config, 0, 1))
        options = options.replacing if replaces else options
        store.put_parts(self.named(key), parts, options, timeout_s=time_s)
        return int(Code.OK)

    def _put_each(
        self, keys: Sequence[str], values: Sequence[Parts], config: ReplicateConfig, replaces: bool
    ) -> list[int]:
        """By group, as a call of the store has one; nearly always there is none."""
        store = self.opened
        check_equal(keys=len(keys), values=len(values))
        named = self.named_each(keys)
        codes = [int(Code.OK)] * len(keys)
        by_group: dict[str | None, list[int]] = {}
        sizes = [0] * len(keys)
        for number, parts in enumerate(values):
            try:
                sizes[number] = _checked_bytes(parts)
            except ArgumentError as error:
                codes[number] = told(error, "a put")
            else:
                by_group.setdefault(_group(config, number, len(keys)), []).append(number)
        for group, numbers in by_group.items():
            options = config.options(group)
            if replaces:
                options = options.replacing
            some = [(named[number], values[number], sizes[number]) for number in numbers]
            found = _put_many(store, some, options)
            for number, code in zip(numbers, found, strict=True):
                codes[number] = code
        return codes


def _put_many(
    store: Store, values: Sequence[tuple[str, Parts, int]], options: PutOptions
) -> list[int]:
    """Codes of values, each a key, its parts and their bytes."""
    keys, parts, sizes = zip(*values, strict=True)
    time_s = _ROOM_S + sum(sizes) / _SLOWEST
    try:
        found = store.put_parts_each(keys, parts, options, room_s=_ROOM_S, timeout_s=time_s)
    except ArgumentError as error:
        if len(values) == 1:
            return [told(error, "a put")]
        # One has memory or a key that cannot be; the others may be right.
        return [_put_many(store, [one], options)[0] for one in values]
    except InlayError as error:
        return [told(error, "a put")] * len(values)
    refused = [one for one in found if isinstance(one, InlayError)]
    if refused:
        told(refused[0], f"a put of {len(refused)} of {len(values)} keys")
    return [code_of(one) if isinstance(one, InlayError) else int(Code.OK) for one in found]


def _checked_bytes(parts: Parts) -> int:
    """A value's size. Raises `ArgumentError` where it is empty, or memory cannot be."""
    size = 0
    for part in parts:
        if isinstance(part, tuple):
            address, length = part
            if address <= 0:
                raise ArgumentError(f"no memory: {length} bytes at {address:#x}")
            size += length
        else:
            size += part.nbytes
    if not size:
        raise ArgumentError("a value must not be empty")
    return size


def _group(config: ReplicateConfig, number: int, keys: int) -> str | None:
    if config.group_ids is None:
        return None
    check_equal(keys=keys, group_ids=len(config.group_ids))
    return config.group_ids[number] or None


def _first(codes: list[int]) -> int:
    return next((code for code in codes if code), int(Code.OK))
