"""Makes the store that a configuration asks for."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from inlay.cache.block_store import KvStore
from inlay.cache.config import CacheConfig, split_disk

if TYPE_CHECKING:
    from inlay.store import PutOptions, Store


class _Blocks:
    """A store as a cache uses it, whose puts go with the same options but for the blocks' worth."""

    def __init__(self, store: "Store", options: "PutOptions") -> None:
        self._store = store
        self._options = options
        self.exists_many = store.exists_many
        self.get_into_many = store.get_into_many
        self.stat = store.stat
        self.close = store.close

    @property
    def node(self) -> str | None:
        return self._store.node

    def put_many(
        self,
        keys: Sequence[str],
        values: Sequence[Any],
        *,
        parents: Sequence[str | None],
        recompute_us: int,
    ) -> Any:
        options = replace(self._options, recompute_us=recompute_us)
        return self._store.put_many(keys, values, options, parents=parents)


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
    from inlay.store import Contribution, Disk, PutOptions, Store

    disk = None if config.disk is None else Disk(*split_disk(config.disk))
    if config.store is None:
        assert config.host is not None
        own = Store.embedded(memory=config.host, disk=disk)
        # The memory ends with this process: what is to be found after a restart is written now.
        return _Blocks(own, PutOptions(durability="memory" if disk is None else "disk"))
    contribute = None if config.host is None else Contribution(memory=config.host, disk=disk)
    return _Blocks(Store.connect(config.store, contribute=contribute), PutOptions())
