"""Calls that read objects."""

from collections.abc import Sequence

from inlay.connect.mooncake.codes import (
    check_equal,
    code_of_result,
    coded,
    coded_each,
    logger,
    told,
)
from inlay.connect.mooncake.host_memory import BufferHandle
from inlay.connect.mooncake.opening import Opening, time_for
from inlay.core.errors import InlayError


class Reading(Opening):
    """A miss is `b""`, None or -704, by the kind of call."""

    def get(self, key: str) -> bytes:
        """The value; `b""` where there is none, or it cannot be read."""
        return self.get_batch([key])[0]

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """The values; `b""` for each that is not there. `[b""]` for no keys."""
        if not keys:
            return [b""]
        try:
            found = self.opened.get_many(self.named_each(keys))
        except InlayError as error:
            logger.warning("get: %s", error)
            return [b""] * len(keys)
        for one in found:
            if isinstance(one, InlayError):
                told(one, "get")
        return [one if isinstance(one, bytes) else b"" for one in found]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The value in place, or None."""
        try:
            return BufferHandle.of(self.opened.view(self.named(key)))
        except InlayError as error:
            told(error, "get_buffer")
            return None

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """`get_buffer` of each key, one after the other."""
        return [self.get_buffer(key) for key in keys]

    @coded
    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Copy the value to an address with room for `size` bytes; its size."""
        buffer = self.buffer_at(buffer_ptr, size)
        return self.opened.get_into(self.named(key), buffer, timeout_s=time_for(size))

    @coded_each
    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """`get_into` of many."""
        store = self.opened
        check_equal(keys=len(keys), buffer_ptrs=len(buffer_ptrs), sizes=len(sizes))
        buffers = [self.buffer_at(*one) for one in zip(buffer_ptrs, sizes, strict=True)]
        found = store.get_into_many(self.named_each(keys), buffers, timeout_s=time_for(sum(sizes)))
        return [code_of_result(one) for one in found]

    @coded_each
    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Scatter each value to its buffers, which have its size together."""
        store = self.opened
        check_equal(keys=len(keys), all_buffer_ptrs=len(all_buffer_ptrs), all_sizes=len(all_sizes))
        buffers = self.buffers_at(all_buffer_ptrs, all_sizes)
        time_s = time_for(sum(map(sum, all_sizes)))
        found = store.get_parts_many(self.named_each(keys), buffers, timeout_s=time_s)
        return [code_of_result(one) for one in found]

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """Copy ranges of many values to offsets in buffers; for each range its size or a code.

        Of parts no checksum is compared.
        """
        found = []
        for base, keys, targets, sources, sizes in zip(
            buffer_ptrs, all_keys, all_dst_offsets, all_src_offsets, all_sizes, strict=True
        ):
            addresses = [[base + offset for offset in of_one] for of_one in targets]
            codes = self._read_ranges(keys, addresses, sizes, sources)
            found.append(
                [
                    list(of_one) if code >= 0 else [code] * len(of_one)
                    for code, of_one in zip(codes, sizes, strict=True)
                ]
            )
        return found

    @coded_each
    def _read_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """The value's size or a code for each key."""
        store = self.opened
        lengths = [len(all_buffer_ptrs), len(all_sizes), len(all_src_offsets)]
        check_equal(keys=len(keys), buffers=lengths[0], sizes=lengths[1], offsets=lengths[2])
        buffers = self.buffers_at(all_buffer_ptrs, all_sizes)
        ranges = [
            list(zip(offsets, sizes, strict=True))
            for offsets, sizes in zip(all_src_offsets, all_sizes, strict=True)
        ]
        time_s = time_for(sum(map(sum, all_sizes)))
        found = store.get_parts_many(self.named_each(keys), buffers, ranges, timeout_s=time_s)
        return [code_of_result(one) for one in found]
