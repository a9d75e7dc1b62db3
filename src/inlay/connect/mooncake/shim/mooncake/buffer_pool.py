"""`mooncake.buffer_pool`, served by Inlay."""

from inlay.connect.mooncake.buffer_pool import BufferPool

RegisteredBufferPool = BufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
