"""The memory that holds the keys and values of all pages, on the model's devices.

Page-first: `[num_pages, layers, 2, page_tokens, kv_heads, head_dim]`, the bytes that
`core.KvFormat` describes. With latent attention there are keys alone, of one head: their leading
elements are the values. Where a model's layers are on several devices, each has a part of every
page. Who owns which page is the engine's business.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import ConfigError, ResourceError
from inlay.core.kv_format import KvFormat
from inlay.core.model_shape import ModelShape
from inlay.core.units import format_bytes
from inlay.models.memory import POOL_SHARE, pages_that_fit

if TYPE_CHECKING:
    from torch import Tensor


class KvDevice(Protocol):
    """Where a part lies."""

    @property
    def device(self) -> str:
        """Its name."""
        ...

    def free_bytes(self) -> int:
        """Memory that can still be taken."""
        ...

    def zeros(self, size: tuple[int, ...], dtype: str) -> Any:
        """Zeroed memory, as the backend's array."""
        ...


class KvPart:
    """Keys and values of neighbouring layers.

    Attributes:
        format: layout of their part of a page.
        data: the backend's array as above; index 0 of its third axis is k, 1 is v.
    """

    def __init__(
        self, kv_format: KvFormat, num_pages: int, shape: ModelShape, device: KvDevice
    ) -> None:
        """Reserve zeroed memory; on a CPU the system provides it page by page when first used.

        Raises:
            ResourceError: the device has too little memory.
        """
        self.format = kv_format
        heads = (1, shape.kv_width) if shape.mla else (shape.kv_heads, shape.head_dim)
        planes = len(kv_format.planes)
        size = (num_pages, kv_format.layers, planes, kv_format.page_tokens, *heads)
        try:
            self.data: Any = device.zeros(size, kv_format.dtype)
        except (MemoryError, ValueError, RuntimeError) as error:  # NumPy's two, and PyTorch's
            free_bytes = device.free_bytes()
            # Where enough is free, a limit of the process or holes in a GPU's memory refused it.
            fit = min(int(free_bytes * POOL_SHARE) // kv_format.page_bytes, num_pages // 2)
            raise ResourceError(
                f"no memory for {num_pages} KV pages of {format_bytes(kv_format.page_bytes)} on "
                f"{device.device}, where {format_bytes(free_bytes)} are free: "
                + pages_that_fit(kv_format, fit)
            ) from error

    @property
    def on_cpu(self) -> bool:
        """Whether it is in the host's memory."""
        return isinstance(self.data, np.ndarray) or bool(self.data.device.type == "cpu")

    def as_bytes(self) -> NDArray[np.uint8]:
        """The same memory as `[num_pages, page_bytes]`; only on a CPU."""
        if isinstance(self.data, np.ndarray):
            return self.data.view(np.uint8).reshape(len(self.data), -1)
        pages: NDArray[np.uint8] = self.device_bytes().numpy()
        return pages

    def device_bytes(self) -> "Tensor":
        """The same memory as `[num_pages, page_bytes]` of a tensor; where PyTorch has it."""
        import torch

        pages: Tensor = self.data.view(torch.uint8).view(len(self.data), -1)
        return pages


class KvPool:
    """Keys and values of `num_pages` pages.

    Args:
        stages: neighbouring layers and their device, in order.

    Attributes:
        format: layout of one page.
        parts: one for each stage.
    """

    def __init__(
        self,
        kv_format: KvFormat,
        num_pages: int,
        shape: ModelShape,
        stages: Sequence[tuple[int, KvDevice]],
    ) -> None:
        """Reserve zeroed memory. Raises as `KvPart`.

        Raises:
            ConfigError: fewer than one page.
        """
        if num_pages < 1:
            raise ConfigError(f"num_pages must be at least 1, got {num_pages}")
        self.format = kv_format
        self.num_pages = num_pages
        self.parts = tuple(
            KvPart(msgspec.structs.replace(kv_format, layers=layers), num_pages, shape, device)
            for layers, device in stages
        )

    @property
    def data(self) -> Any:
        """All of it, where it is in one piece."""
        return self.whole.data

    @property
    def whole(self) -> KvPart:
        """The only part.

        Raises:
            ConfigError: there are several.
        """
        if len(self.parts) > 1:
            raise ConfigError(
                f"the model's layers are in {len(self.parts)} places, and a page in as many "
                "pieces: cache.host, cache.disk and cache.store need all of a page on one device; "
                "leave them out, or place all layers there"
            )
        return self.parts[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.format.page_bytes
