"""What a user may set about the KV cache of one instance."""

from dataclasses import dataclass
from typing import Literal

from inlay.core.errors import ConfigError
from inlay.core.kv_format import DTYPE_BYTES
from inlay.core.units import parse_bytes

KV_DTYPES = ("auto", *DTYPE_BYTES)

WriteWhen = Literal["through", "second_hit", "evict"]
_WRITES: tuple[WriteWhen, ...] = ("through", "second_hit", "evict")


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """Size and layout of the KV cache.

    Attributes:
        pages: number of pages; None derives it from `memory`.
        memory: bytes for pages, such as `"1GiB"`; None takes a share of what is free.
        page_tokens: tokens per page and block, 1 to 1024.
        dtype: element type of k and v; `auto` leaves the choice to the model.
        prefix: reuse the KV of equal prefixes.
        secret: enters every block's name, so that names mean nothing outside a deployment.
        host: memory of this machine for blocks that the device has no room for, such as `"8GiB"`.
        disk: a directory and what may be taken there, such as `"/var/cache/inlay:20GiB"`; needs
            `host`.
        store: `"host:port"` of a store's master: blocks are shared with all its clients, and
            `host` and `disk` are what this instance contributes. Without it they are its own.
        write: when a block is copied there: `through`, as soon as it is computed; `second_hit`,
            when it is used again; `evict`, when its page is about to be given to another block.
    """

    pages: int | None = None
    memory: str | int | None = None
    page_tokens: int = 16
    dtype: str = "auto"
    prefix: bool = True
    secret: str = ""
    host: str | int | None = None
    disk: str | None = None
    store: str | None = None
    write: WriteWhen = "through"

    def __post_init__(self) -> None:
        if self.pages is not None and self.pages < 1:
            raise ConfigError(f"cache.pages must be at least 1, got {self.pages}")
        if self.pages is not None and self.memory is not None:
            raise ConfigError("cache.pages and cache.memory exclude each other: set one of them")
        if self.memory is not None and parse_bytes(self.memory) < 1:
            raise ConfigError(f"cache.memory must be positive, got {self.memory!r}")
        if not 1 <= self.page_tokens <= 1024:
            raise ConfigError(f"cache.page_tokens must be in 1..1024, got {self.page_tokens}")
        if self.dtype not in KV_DTYPES:
            raise ConfigError(f"cache.dtype {self.dtype!r} is not one of {', '.join(KV_DTYPES)}")
        if self.host is not None and parse_bytes(self.host) < 1:
            raise ConfigError(f"cache.host must be positive, got {self.host!r}")
        if self.disk is not None:
            self._check_disk(self.disk)
        if self.store is not None:
            name, _, port = self.store.rpartition(":")
            if not name or not port.isdigit() or not 1 <= int(port) <= 65535:
                raise ConfigError(
                    f"cache.store is {self.store!r}: write the master's host:port, for example "
                    "127.0.0.1:50051"
                )
        if self.write not in _WRITES:
            raise ConfigError(f"cache.write {self.write!r} is not one of {', '.join(_WRITES)}")
        if self.has_tiers and not self.prefix:
            raise ConfigError(
                "cache.host, cache.disk and cache.store keep blocks for reuse, which "
                "cache.prefix=false forbids: leave out one or the other"
            )

    def _check_disk(self, disk: str) -> None:
        path, size_bytes = split_disk(disk)
        if not path or size_bytes < 1:
            raise ConfigError(
                f"cache.disk is {disk!r}: write a directory and a positive size, for example "
                "/var/cache/inlay:20GiB"
            )
        if self.host is None:
            raise ConfigError(
                "cache.disk is filled from cache.host: set that too, for example cache.host=1GiB"
            )

    @property
    def has_tiers(self) -> bool:
        """Whether blocks are kept anywhere besides the device."""
        return self.host is not None or self.disk is not None or self.store is not None


def split_disk(disk: str) -> tuple[str, int]:
    """Directory and bytes of `"PATH:SIZE"`.

    Raises:
        ConfigError: what follows the last colon is not a size.
    """
    path, colon, size = disk.rpartition(":")
    if not colon:
        raise ConfigError(f"cache.disk is {disk!r}: a size is missing, for example {disk}:20GiB")
    return path, parse_bytes(size)
