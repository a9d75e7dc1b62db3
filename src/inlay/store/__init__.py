"""The KV store: objects in the memory and on the disks of all nodes."""

from inlay.store.address import Cluster
from inlay.store.policy import EvictionPolicy, Newcomer

__all__ = ["Cluster", "EvictionPolicy", "Newcomer"]
