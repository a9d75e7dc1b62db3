"""What an engine asks of the pages of another rank of its model, by messages of `inlay.transfer`.

Numbers tell answers apart: each ask but the one to stop has one answer.
"""

import msgspec

from inlay.core.instance_messages import RankTarget

TOPIC = "rank"


class PageGrant(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Let another instance write to pages. The answer's value is the grant.

    Attributes:
        pages: ids, little-endian u32 each.
    """

    pages: bytes


class PageRevoke(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Take a grant back. The answer's value is 1; 0: something may still land, ask again."""

    grant: int


class PageWrite(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Copy what ranks of another instance have of some pages to them. Answered when it has landed.

    Attributes:
        pages, remote_pages: ids here and there, equally many, little-endian u32 each.
        layer: this one alone; None: all.
        segment: name of the pool there.
        ranks: all of that instance, in order.
    """

    pages: bytes
    remote_pages: bytes
    layer: int | None
    segment: str
    ranks: tuple[RankTarget, ...]


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """Do something. `work` None: what has this number is not wanted any more."""

    number: int
    work: PageGrant | PageRevoke | PageWrite | None


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """It is done, or why it is not: `error`, empty where it is."""

    number: int
    value: int = 0
    error: str = ""
