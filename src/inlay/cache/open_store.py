"""Makes the store that a configuration asks for."""

from inlay.cache.block_store import KvStore
from inlay.cache.config import CacheConfig, split_disk


def open_store(config: CacheConfig) -> KvStore | None:
    """The store behind the device, or None where no tier is configured.

    Without `cache.store` it lives in this process and is this instance's own. Instances of a host
    share by naming one master: a store that the first of them held for the others would take
    their blocks along when it ends.

    Raises:
        StoreError: the master cannot be reached, or the disk cannot be used.
    """
    if not config.has_tiers:
        return None
    from inlay.store import Contribution, Disk, Store

    disk = None if config.disk is None else Disk(*split_disk(config.disk))
    if config.store is None:
        return Store.embedded(memory=config.host, disk=disk)
    contribute = None
    if config.host is not None or disk is not None:
        contribute = Contribution(memory=config.host or 0, disk=disk)
    return Store.connect(config.store, contribute=contribute)
