"""Values that are read or written layer by layer."""

import ctypes
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from inlay.connect.mooncake.codes import Code, check_equal, coded, coded_each
from inlay.connect.mooncake.opening import QUESTION_S
from inlay.connect.mooncake.reading import Reading
from inlay.connect.mooncake.replicas import DEFAULT, ReplicateConfig
from inlay.connect.mooncake.writing import Writing
from inlay.core.errors import ArgumentError


class Sessions(Reading, Writing):
    """A get session is a check that objects are there; a put session gathers its value here.

    An object is seen when its put session has ended, as a whole; until then its bytes are in
    memory of this process, from where they are put.
    """

    def __init__(self) -> None:
        super().__init__()
        self._read: set[str] = set()
        self._written: dict[str, tuple[npt.NDArray[np.uint8], ReplicateConfig]] = {}

    @coded_each
    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """0 for each that is there."""
        there = self.opened.exists_many(self.named_each(keys), timeout_s=QUESTION_S) if keys else []
        self._read.update(key for key, found in zip(keys, there, strict=True) if found)
        return [int(Code.OK if found else Code.OBJECT_NOT_FOUND) for found in there]

    @coded_each
    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Copy ranges of values to buffers; bytes of each key, or a code. Needs a session."""
        self._check_session(keys, self._read)
        codes = self._read_ranges(keys, all_buffer_ptrs, all_sizes, all_src_offsets)
        return [
            sum(sizes) if code >= 0 else code for code, sizes in zip(codes, all_sizes, strict=True)
        ]

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """Forget the sessions; 0."""
        self._read.difference_update(keys)
        return int(Code.OK)

    @coded_each
    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """Begin values of known sizes; 0 for each. One that is begun already begins anew."""
        _ = self.opened
        check_equal(keys=len(keys), sizes=len(sizes))
        if any(size <= 0 for size in sizes):
            raise ArgumentError(f"a value must not be empty, got sizes {list(sizes)[:8]}")
        for key, size in zip(keys, sizes, strict=True):
            self._written[key] = np.zeros(size, np.uint8), config
        return [int(Code.OK)] * len(keys)

    @coded_each
    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Copy buffers to offsets of values; bytes of each key, or a code. Needs a session."""
        lengths = [len(all_buffer_ptrs), len(all_sizes), len(all_dst_offsets)]
        check_equal(keys=len(keys), buffers=lengths[0], sizes=lengths[1], offsets=lengths[2])
        self._check_session(keys, self._written)
        copied = []
        for key, pointers, sizes, offsets in zip(
            keys, all_buffer_ptrs, all_sizes, all_dst_offsets, strict=True
        ):
            check_equal(buffers=len(pointers), sizes=len(sizes), offsets=len(offsets))
            value, _ = self._written[key]
            for address, size, offset in zip(pointers, sizes, offsets, strict=True):
                if address <= 0 or not 0 <= offset <= offset + size <= len(value):
                    raise ArgumentError(
                        f"{size} bytes from offset {offset} on do not fit into the {len(value)} "
                        f"of {key!r}"
                    )
                ctypes.memmove(value.ctypes.data + offset, address, size)
            copied.append(sum(sizes))
        return copied

    @coded_each
    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Store the values."""
        self._check_session(keys, self._written)
        return [self._end_put(key) for key in keys]

    @coded
    def _end_put(self, key: str) -> int:
        value, config = self._written.pop(key)
        return self._put_one(key, [value], config, False)

    @coded_each
    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Drop the values."""
        self._check_session(keys, self._written)
        for key in keys:
            del self._written[key]
        return [int(Code.OK)] * len(keys)

    def _check_session(self, keys: Sequence[str], begun: Collection[str]) -> None:
        if missing := [key for key in keys if key not in begun]:
            raise ArgumentError(f"no session of {missing[0]!r} was started")
