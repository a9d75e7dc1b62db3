"""What happened to named blocks, for those who keep an index of this instance from afar."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BlockStored:
    """A block can be reused from now on."""

    digest: bytes
    parent: bytes


@dataclass(frozen=True)
class BlockRemoved:
    """A block is gone."""

    digest: bytes


KvEvent = BlockStored | BlockRemoved
