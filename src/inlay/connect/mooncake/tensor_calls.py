"""Calls that store torch tensors. torch is imported by the first of them."""

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Optional

from inlay.connect.mooncake.codes import Code, check_equal, coded, coded_each, told
from inlay.connect.mooncake.reading import Reading
from inlay.connect.mooncake.replicas import DEFAULT, ReplicateConfig
from inlay.connect.mooncake.tensors import (
    HEADER_BYTES,
    copied_tensor,
    parts_of,
    read_header,
    read_safetensors,
    shards_of,
    tensor_at,
    write_safetensors,
)
from inlay.connect.mooncake.writing import Writing
from inlay.core.errors import ArgumentError, InlayError

if TYPE_CHECKING:
    import torch

Found = Optional["torch.Tensor"]


class TensorCalls(Reading, Writing):
    """Tensors under keys; with `tp`, the shards of one under `key_tp_RANK`.

    A tensor that cannot be stored, or divided, is -600; one that is not there, or no tensor, None.
    """

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Store a tensor, unless there is one."""
        return self.pub_tensor(key, tensor)

    @coded
    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig = DEFAULT) -> int:
        """As `put_tensor`, with a configuration."""
        return self._put_one(key, parts_of(tensor), config, False)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """As `put_tensor`, and replace."""
        return self.upsert_pub_tensor(key, tensor)

    @coded
    def upsert_pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig = DEFAULT) -> int:
        """As `pub_tensor`, and replace."""
        return self._put_one(key, parts_of(tensor), config, True)

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """`put_tensor` of many."""
        return self.batch_pub_tensor(keys, tensors_list)

    def batch_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """`pub_tensor` of many."""
        return self._put_tensors(keys, tensors_list, config, False)

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """`upsert_tensor` of many."""
        return self.batch_upsert_pub_tensor(keys, tensors_list)

    def batch_upsert_pub_tensor(
        self, keys: Sequence[str], tensors_list: Sequence[Any], config: ReplicateConfig = DEFAULT
    ) -> list[int]:
        """`upsert_pub_tensor` of many."""
        return self._put_tensors(keys, tensors_list, config, True)

    @coded_each
    def _put_tensors(
        self, keys: Sequence[str], tensors: Sequence[Any], config: ReplicateConfig, replaces: bool
    ) -> list[int]:
        check_equal(keys=len(keys), tensors=len(tensors))
        return self._put_each(keys, [parts_of(tensor) for tensor in tensors], config, replaces)

    def get_tensor(self, key: str) -> Found:
        """A tensor of its own memory, or None."""
        return self._found(lambda: copied_tensor(self.opened.view(self.named(key)).memory))

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Found]:
        """`get_tensor` of many, one after the other."""
        return [self.get_tensor(key) for key in keys]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Found:
        """Copy header and elements to an address; a tensor there, which does not hold it."""

        def read() -> "torch.Tensor":
            length = self.opened.get_into(self.named(key), self.buffer_at(buffer_ptr, size))
            memory = (ctypes.c_uint8 * length).from_address(buffer_ptr)
            return tensor_at(memory, read_header(memory))

        return self._found(read)

    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Found]:
        """`get_tensor_into` of many, one after the other."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [None] * len(keys)
        return [self.get_tensor_into(*one) for one in zip(keys, buffer_ptrs, sizes, strict=True)]

    @coded
    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Store a tensor whose header and elements lie at an address."""
        return self._put_tensor_from(key, buffer_ptr, size, False)

    @coded
    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As `put_tensor_from`, and replace."""
        return self._put_tensor_from(key, buffer_ptr, size, True)

    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """`put_tensor_from` of many."""
        return _each(self.put_tensor_from, keys, buffer_ptrs, sizes)

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """`upsert_tensor_from` of many."""
        return _each(self.upsert_tensor_from, keys, buffer_ptrs, sizes)

    def _put_tensor_from(self, key: str, address: int, size: int, replaces: bool) -> int:
        buffer = self.buffer_at(address, size)
        read_header((ctypes.c_uint8 * size).from_address(address))
        return self._put_one(key, [buffer], DEFAULT, replaces)

    def put_tensor_with_tp(
        self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Cut a whole tensor and store all of its shards; the rank is not looked at."""
        return self.pub_tensor_with_tp(key, tensor, DEFAULT, tp_rank, tp_size, split_dim)

    @coded
    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: ReplicateConfig = DEFAULT,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """As `put_tensor_with_tp`, with a configuration."""
        if tp_size <= 1:
            return self._put_one(key, parts_of(tensor), config, False)
        shards = shards_of(tensor, tp_size, split_dim)
        keys = [_shard_key(key, rank, tp_size) for rank in range(tp_size)]
        codes = self._put_each(keys, [parts_of(shard) for shard in shards], config, False)
        return next((code for code in codes if code), int(Code.OK))

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp` of many."""
        return self.batch_pub_tensor_with_tp(
            base_keys, tensors_list, DEFAULT, tp_rank, tp_size, split_dim
        )

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig = DEFAULT,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`pub_tensor_with_tp` of many."""

        def put(key: str, tensor: Any) -> int:
            return self.pub_tensor_with_tp(key, tensor, config, tp_rank, tp_size, split_dim)

        return _each(put, base_keys, tensors_list)

    @coded
    def put_tensor_with_tp_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` of a tensor whose header and elements lie at an address."""
        self.buffer_at(buffer_ptr, size)
        memory = (ctypes.c_uint8 * size).from_address(buffer_ptr)
        tensor = tensor_at(memory, read_header(memory))
        return self.put_tensor_with_tp(key, tensor, tp_rank, tp_size, split_dim)

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp_from` of many."""

        def put(key: str, address: int, size: int) -> int:
            return self.put_tensor_with_tp_from(key, address, size, tp_rank, tp_size, split_dim)

        return _each(put, base_keys, buffer_ptrs, sizes)

    @coded
    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Copy the elements into a tensor of the same form, on any device; their bytes."""
        parts = parts_of(tensor)
        if not tensor.is_contiguous():
            raise ArgumentError("the tensor to fill must be contiguous")
        header = bytearray(HEADER_BYTES)
        self.opened.get_parts(self.named(key), [header], [(0, HEADER_BYTES)])
        if bytes(header) != bytes(parts[0]):
            raise ArgumentError(f"the tensor of {key!r} has another shape or dtype")
        size = tensor.numel() * tensor.element_size()
        if size:
            self.opened.get_parts(self.named(key), [parts[1]], [(HEADER_BYTES, size)])
        return int(size)

    def batch_get_tensor_into_cuda(
        self, keys: Sequence[str], tensors_list: Sequence[Any]
    ) -> list[int]:
        """`get_tensor_into_cuda` of many, one after the other."""
        return _each(self.get_tensor_into_cuda, keys, tensors_list)

    @coded
    def save_tensor_to_safetensor(self, key: str, file_name: str | None = None) -> int:
        """Write a tensor to a safetensors file, under its key; the file's name is the key's."""
        tensor = copied_tensor(self.opened.view(self.named(key)).memory)
        write_safetensors(key if file_name is None else file_name, key, tensor)
        return int(Code.OK)

    def load_tensor_from_safetensor(self, key: str | None = None, file_name: str = "") -> Found:
        """Read a tensor of a safetensors file, put it under its key, and return it; None: failed.

        Args:
            key: None: the one that the tensor has there.
            file_name: of a file with this key in it, or with one tensor.
        """

        def read() -> "torch.Tensor":
            name, tensor = read_safetensors(file_name, key)
            self._put_one(key or name, parts_of(tensor), DEFAULT, True)
            return tensor

        return self._found(read)

    def get_tensor_with_tp(
        self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Found:
        """The rank's shard, as it was cut."""
        return self.get_tensor(_shard_key(key, tp_rank, tp_size))

    def batch_get_tensor_with_tp(
        self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Found]:
        """`get_tensor_with_tp` of many."""
        return self.batch_get_tensor([_shard_key(key, tp_rank, tp_size) for key in base_keys])

    def get_tensor_with_tp_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Found:
        """`get_tensor_into` of the rank's shard."""
        return self.get_tensor_into(_shard_key(key, tp_rank, tp_size), buffer_ptr, size)

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Found]:
        """`get_tensor_with_tp_into` of many."""
        keys = [_shard_key(key, tp_rank, tp_size) for key in base_keys]
        return self.batch_get_tensor_into(keys, buffer_ptrs, sizes)

    def _found(self, read: Callable[[], "torch.Tensor"]) -> Found:
        try:
            return read()
        except InlayError as error:
            told(error, "a read of a tensor")
            return None


def _shard_key(key: str, tp_rank: int, tp_size: int) -> str:
    return key if tp_size <= 1 else f"{key}_tp_{tp_rank}"


def _each(call: Callable[..., int], keys: Sequence[str], *lists: Sequence[Any]) -> list[int]:
    if any(len(one) != len(keys) for one in lists):
        return [int(Code.INVALID_PARAMS)] * len(keys)
    return [call(*arguments) for arguments in zip(keys, *lists, strict=True)]
