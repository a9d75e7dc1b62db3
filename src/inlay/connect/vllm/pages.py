"""vLLM's KV tensors as pages, and host memory for pages under way."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from inlay.core.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer's tensor.

    Attributes:
        blocks: `[num_blocks, ...]`, a view of vLLM's tensor.
        block_bytes: of one block.
        offset: of block 0, from the start of the tensor's storage.
        stride: bytes from one block to the next.
        dense: whether a block is one range of memory.
    """

    blocks: "torch.Tensor"
    block_bytes: int
    offset: int
    stride: int
    dense: bool


def layer_pages(name: str, tensor: "torch.Tensor", num_blocks: int) -> LayerPages:
    """See `LayerPages`.

    Raises:
        ConfigError: no dimension, or more than one, can be that of blocks.
    """
    if tensor.shape[0] != num_blocks:
        found = [i for i, size in enumerate(tensor.shape) if size == num_blocks]
        if len(found) != 1:
            raise ConfigError(
                f"{name}: of {list(tensor.shape)} none, or more than one, is the dimension of "
                f"{num_blocks} blocks; this layout of vLLM's cache is not known"
            )
        tensor = tensor.movedim(found[0], 0)
    one, size = tensor[0], tensor.element_size()
    reach = 1 + sum((n - 1) * step for n, step in zip(one.shape, one.stride(), strict=True))
    return LayerPages(
        blocks=tensor,
        block_bytes=one.numel() * size,
        offset=int(tensor.storage_offset()) * size,
        stride=tensor.stride(0) * size,
        dense=reach == one.numel(),
    )


class KvPages:
    """All layers of a worker's cache.

    A page in the store is one block, all layers behind each other in the order of their names in
    vLLM, each as `[...]` of the layer's tensor in logical order: whatever the strides are here.

    Args:
        tensors: vLLM's, by layer. All have one shape and dtype.
        num_blocks: in each.

    Raises:
        ConfigError: the layers differ, or their layout is not known.
    """

    def __init__(self, tensors: Mapping[str, "torch.Tensor"], num_blocks: int) -> None:
        if not tensors:
            raise ConfigError("vLLM has no KV cache to register")
        self.layers = {
            name: layer_pages(name, tensor, num_blocks) for name, tensor in tensors.items()
        }
        first_name, first = next(iter(self.layers.items()))
        for name, layer in self.layers.items():
            mine, its = first.blocks, layer.blocks
            if mine.shape != its.shape or mine.dtype != its.dtype:
                raise ConfigError(
                    f"the KV of {name} is {list(its.shape)} {its.dtype}, that of {first_name} "
                    f"{list(mine.shape)} {mine.dtype}: the connector moves layers of one shape"
                )
        self.first = first
        self.numbers = {name: i for i, name in enumerate(self.layers)}
        self.page_bytes = first.block_bytes * len(self.layers)

    @property
    def on_host(self) -> bool:
        """Whether the cache is in host memory."""
        return self.first.blocks.device.type == "cpu"


class Staging:
    """Pages in host memory, page-locked where the cache is on a device.

    Args:
        pages: of the cache.
        size_bytes: for all; at least one page is made.
    """

    def __init__(self, pages: KvPages, size_bytes: int) -> None:
        import torch

        self._pages = pages
        slots = max(1, size_bytes // pages.page_bytes)
        one = pages.first.blocks
        self.memory = torch.empty(
            (slots, len(pages.layers), *one.shape[1:]),
            dtype=one.dtype,
            pin_memory=not pages.on_host,
        )
        self._free = list(range(slots))
        self._changed = threading.Condition()

    def take(self, count: int) -> list[int]:
        """Up to `count` slots, at once, ascending."""
        with self._changed:
            self._free.sort()
            taken, self._free = self._free[:count], self._free[count:]
            return taken

    def wait(self, count: int, timeout_s: float) -> list[int]:
        """At least one slot and up to `count`; none after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._free), timeout_s)
        return self.take(count)

    def give_back(self, slots: Sequence[int]) -> None:
        """Slots that are not used any more."""
        with self._changed:
            self._free += slots
            self._changed.notify_all()

    def buffer(self, slot: int) -> tuple[int, int]:
        """(address, bytes) of a slot."""
        size = self._pages.page_bytes
        return self.memory.data_ptr() + slot * size, size

    def copy_in(self, name: str, block_ids: "torch.Tensor", slots: Sequence[int]) -> None:
        """Blocks of one layer into slots. On a device: in the order of its stream.

        Args:
            name: of the layer.
            block_ids: `[n]` int64, on the cache's device.
            slots: n of them, ascending, of which neighbours are copied at once.
        """
        blocks = self._pages.layers[name].blocks.index_select(0, block_ids)
        into = self.memory[:, self._pages.numbers[name]]
        at = 0
        while at < len(slots):
            end = at + 1
            while end < len(slots) and slots[end] == slots[end - 1] + 1:
                end += 1
            into[slots[at] : slots[end - 1] + 1].copy_(blocks[at:end], non_blocking=True)
            at = end

    def copy_out(self, block_ids: "torch.Tensor", slots: "torch.Tensor") -> None:
        """All layers of slots into blocks.

        Args:
            block_ids: `[n]` int64, on the cache's device.
            slots: `[n]` int64, on the host.
        """
        for name, number in self._pages.numbers.items():
            blocks = self.memory[:, number].index_select(0, slots)
            target = self._pages.layers[name].blocks
            target.index_copy_(0, block_ids, blocks.to(target.device))

    def indices(self, values: Sequence[int], *, on_device: bool) -> "torch.Tensor":
        """A tensor of block ids (on the cache's device) or slots."""
        import torch

        device = self._pages.first.blocks.device if on_device else torch.device("cpu")
        return torch.tensor(values, dtype=torch.int64, device=device)
