"""The KV store: objects in the memory and on the disks of all nodes."""

from inlay.store.address import Cluster

__all__ = ["Cluster"]
