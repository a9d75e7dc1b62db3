"""The pages that one rank has, and what moves their bytes to other instances."""

import asyncio
from typing import Protocol

import numpy as np
import numpy.typing as npt

from inlay.cache.rank_messages import PageWrite
from inlay.core.kv_format import KvFormat
from inlay.core.kv_ranges import page_ranges
from inlay.core.tensor_parallel import Rank
from inlay.transfer import Op, Peer, Ranges, Segment, TransferEngine

LAND_S = 30.0
"""For one write: no transfer takes longer."""
_REVOKE_S = 5.0


class RankPages(Protocol):
    """See the module. Where there are no grants, their number is 0."""

    @property
    def address(self) -> str:
        """Of the rank's transfer engine."""
        ...

    def grant(self, pages: npt.NDArray[np.int32]) -> int:
        """Let another instance write to pages.

        Raises:
            InlayError: they are granted already, or the rank does not answer.
        """
        ...

    def revoke(self, grant: int) -> bool:
        """Wait until nothing can land by a grant any more; False: it may still, call again."""
        ...

    async def write(self, write: PageWrite) -> None:
        """Copy pages to another instance, and return when they have landed.

        Raises:
            InlayError: they have not, or not all.
        """
        ...


class OwnPages:
    """Those of this process.

    Args:
        engine: of this process; closed by its owner.
        segment: all pages, registered with it.
        kv_format: layout of a page.
        guarded: whether the segment takes grants.
    """

    def __init__(
        self, engine: TransferEngine, segment: Segment, kv_format: KvFormat, *, guarded: bool
    ) -> None:
        self.address = engine.address
        self._engine = engine
        self._segment = segment
        self._format = kv_format
        self._guarded = guarded
        self._peers: dict[str, Peer] = {}

    def grant(self, pages: npt.NDArray[np.int32]) -> int:
        """See `RankPages`."""
        return self._segment.grant(pages) if self._guarded else 0

    def revoke(self, grant: int) -> bool:
        """See `RankPages`."""
        return not self._guarded or self._segment.revoke(grant, timeout_s=_REVOKE_S)

    async def write(self, write: PageWrite) -> None:
        """See `RankPages`."""
        transfers = []
        for number, target in enumerate(write.ranks):
            its = self._format.of_rank(Rank(number, len(write.ranks)))
            ranges = page_ranges(self._format, its, write.layer)
            if ranges is None:
                continue
            peer = await self._peer(target.address)
            transfers.append(
                Ranges(
                    Op.WRITE,
                    self._segment,
                    peer[write.segment],
                    _offsets(write.pages, self._format, ranges.here),
                    _offsets(write.remote_pages, its, ranges.there),
                    ranges.length,
                    grant=target.grant,
                )
            )
        if transfers:
            await self._engine.submit(transfers, deadline_s=LAND_S)

    async def _peer(self, address: str) -> Peer:
        peer = self._peers.get(address)
        if peer is None or not peer.alive:
            peer = await asyncio.to_thread(self._engine.connect, address)
            self._peers = {at: one for at, one in self._peers.items() if one.alive}
            self._peers[address] = peer
        return peer


def _offsets(
    page_ids: bytes, kv_format: KvFormat, starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Of ranges of pages, from the start of the pool."""
    pages = np.frombuffer(page_ids, "<u4").astype(np.int64)
    return np.add.outer(pages * kv_format.page_bytes, starts).ravel()
