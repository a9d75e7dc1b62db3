"""`mooncake.async_store`, served by Inlay."""

from inlay.connect.mooncake.async_store import MooncakeDistributedStoreAsync

__all__ = ["MooncakeDistributedStoreAsync"]
