"""Makes the store that a configuration asks for."""

from inlay.cache.block_store import KvStore
from inlay.cache.config import CacheConfig


def open_store(config: CacheConfig) -> KvStore | None:
    """The store behind the device, or None where no tier is configured.

    Without `cache.store` it lives in this process and is this instance's own. Instances of a host
    share by naming one master: a store that the first of them held for the others would take
    their blocks along when it ends.

    Raises:
        StoreError: the master cannot be reached.
        ResourceError: there is no room for `cache.host`.
    """
    if not config.has_tiers:
        return None
    from inlay.store import Contribution, Store

    contribute = None if config.host is None else Contribution(memory=config.host)
    if config.store is None:
        assert config.host is not None
        return Store.embedded(memory=config.host)
    return Store.connect(config.store, contribute=contribute)
