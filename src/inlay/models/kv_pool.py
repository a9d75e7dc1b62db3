"""The memory that holds the keys and values of all pages, on the model's device.

Page-first: `[num_pages, layers, 2, page_tokens, kv_heads, head_dim]`, the bytes that
`core.KvFormat` describes. With latent attention there are keys alone, of one head: their leading
elements are the values. Who owns which page is the engine's business.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from inlay.core.errors import ConfigError, ResourceError
from inlay.core.kv_format import KvFormat
from inlay.core.model_shape import ModelShape
from inlay.core.units import format_bytes
from inlay.models.memory import POOL_SHARE, device_free_bytes, pages_that_fit


class KvPool:
    """Keys and values of `num_pages` pages.

    Attributes:
        format: layout of one page.
        data: the tensor above; index 0 of its third axis is k, 1 is v.
    """

    def __init__(
        self, kv_format: KvFormat, num_pages: int, shape: ModelShape, device: torch.device
    ) -> None:
        """Reserve zeroed memory; on a CPU the system provides it page by page when first used.

        Raises:
            ConfigError: fewer than one page.
            ResourceError: the device has too little memory.
        """
        if num_pages < 1:
            raise ConfigError(f"num_pages must be at least 1, got {num_pages}")
        self.format = kv_format
        self.num_pages = num_pages
        heads = (1, shape.kv_width) if shape.mla else (shape.kv_heads, shape.head_dim)
        planes = len(kv_format.planes)
        size = (num_pages, kv_format.layers, planes, kv_format.page_tokens, *heads)
        try:
            self.data = torch.zeros(size, dtype=getattr(torch, kv_format.dtype), device=device)
        except RuntimeError as error:
            free_bytes = device_free_bytes(str(device))
            # Where enough is free, a limit of the process or holes in a GPU's memory refused it.
            fit = min(int(free_bytes * POOL_SHARE) // kv_format.page_bytes, num_pages // 2)
            raise ResourceError(
                f"no memory for {num_pages} KV pages of {format_bytes(kv_format.page_bytes)} on "
                f"{device}, where {format_bytes(free_bytes)} are free: "
                + pages_that_fit(kv_format, fit)
            ) from error

    def as_bytes(self) -> NDArray[np.uint8]:
        """The same memory as `[num_pages, page_bytes]`; only on a CPU."""
        pages: NDArray[np.uint8] = self.device_bytes().numpy()
        return pages

    def device_bytes(self) -> torch.Tensor:
        """The same memory as `[num_pages, page_bytes]`, where it is."""
        return self.data.view(torch.uint8).view(self.num_pages, -1)

    @property
    def nbytes(self) -> int:
        """Bytes of all pages."""
        return self.num_pages * self.format.page_bytes
