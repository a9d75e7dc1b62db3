"""Who has a version: its publishers, and the peers that these have heard of. Legend: P pieces.

What this host has in memory is taken from there. Others are asked for the rest alone.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from inlay.core.errors import (
    EngineClosedError,
    InlayError,
    TransferError,
    WeightsError,
    WeightsMismatchError,
)
from inlay.transfer import Peer, TransferEngine
from inlay.weights.holder import Holder, Places
from inlay.weights.manifest import check_label, union
from inlay.weights.offer import CONNECT_S, Head, Layout, identity, newest, read_head, read_offer
from inlay.weights.publisher import HOLD_TOPIC, Holds

log = logging.getLogger(__name__)

_MEMORY_OF_HOST = ("local", "shm")


class Holders:
    """Connects to the publishers, and to others as publishers tell of them.

    Args:
        version: None: the newest that all publishers have.
        max_peers: that are asked at the same time besides publishers.

    Attributes:
        manifest: what the publishers have together.
        version: of it.
        shunned: who is not asked any more, and why.
        copies_P: how many peers have each piece.
        asked_P: how many peers have asked for it.
        near_P: whether this host has it in memory.

    Raises:
        WeightsError: there is no such checkpoint or version.
        WeightsMismatchError: publishers contradict each other.
        TransferError: one of them cannot be reached.
    """

    def __init__(
        self,
        engine: TransferEngine,
        publishers: Sequence[str],
        name: str,
        version: str | None,
        *,
        max_peers: int,
    ) -> None:
        self._engine = engine
        self._max_peers = max_peers
        self._by_address: dict[str, Holder] = {}
        self.shunned: dict[str, str] = {}
        check_label(name, "checkpoint's name")
        self.version = version or newest(engine, publishers, name) or ""
        if not self.version:
            raise WeightsError(f"{', '.join(publishers)} have no common version of {name}")
        check_label(self.version, "version")
        told: dict[str, tuple[str, Peer]] = {}
        for address in publishers:  # one that is named twice is asked once
            peer = engine.connect(address, timeout_s=CONNECT_S)
            told.setdefault(peer.engine_id, (address, peer))
        self._told = dict(told.values())
        self.publishers, peers = tuple(self._told), list(self._told.values())
        offers = [read_offer(engine, peer, name, self.version) for peer in peers]
        own = [manifest for manifest, _ in offers]
        self.manifest, of_union = union(own, self.publishers)
        self._identity = identity(self.manifest.to_bytes())
        self._own: list[tuple[Places, Layout]] = []
        for number, (manifest, layout) in enumerate(offers):
            places = Places.of(manifest, layout)
            if len(peers) > 1:
                places = places.in_union(manifest, self.manifest, of_union, number)
            self._own.append((places, layout))
        self.count()
        for peer, (places, layout) in zip(peers, self._own, strict=True):
            self._add(peer, places, layout, publisher=True)

    def __iter__(self) -> Iterator[Holder]:
        return iter(list(self._by_address.values()))

    def __len__(self) -> int:
        return len(self._by_address)

    def __contains__(self, holder: Holder) -> bool:
        return self._by_address.get(holder.address) is holder

    @property
    def nobody_comes_back(self) -> bool:
        """Whether nobody is asked, and no publisher will be again."""
        return not self._by_address and all(one in self.shunned for one in self.publishers)

    def drop(self, holder: Holder, why: str, *, shun: bool = False) -> None:
        """Ask it no more; unless it is shunned, until a publisher tells of it again."""
        if holder not in self:
            return
        log.info("%s is not asked any more: %s", holder.address, why)
        del self._by_address[holder.address]
        if shun:
            self.shunned[holder.address] = why
        self.count()

    def count(self) -> None:
        """Sum up what holders have and have asked for."""
        num = self.manifest.num_pieces
        self.copies_P, self.asked_P = np.zeros(num, np.int32), np.zeros(num, np.int32)
        self.near_P = np.zeros(num, np.bool_)
        for holder in self:
            if holder.near:
                self.near_P |= holder.has_P
            if not holder.publisher:
                self.copies_P += holder.has_P
                self.asked_P += holder.asked_P

    async def meet(self) -> list[Holder]:
        """Who is new, as publishers tell that can be reached.

        Raises:
            WeightsError: the version is not published any more, and nobody is asked.
        """
        met: list[Holder] = []
        for address in self.publishers:
            if address not in self.shunned:
                met += await self._ask(address)
        return met

    def tell(self, said: Holds) -> None:
        """Say something to the publishers; those that do not answer miss it."""
        body = msgspec.msgpack.encode(said)
        for address in self.publishers:
            with contextlib.suppress(TransferError, EngineClosedError):
                try:
                    self._told[address].send(HOLD_TOPIC, body)
                except TransferError:  # to look first would be a round trip each time
                    self._told[address] = self._engine.connect(address, timeout_s=CONNECT_S)
                    self._told[address].send(HOLD_TOPIC, body)

    def close(self) -> None:
        """Let go of what answers of peers land in."""
        for holder in self:
            holder.close()

    async def _ask(self, address: str) -> list[Holder]:
        """Of one publisher, and of whom it has heard."""
        try:
            head = await asyncio.to_thread(self._read_head, address)
        except InlayError as error:
            log.debug("publisher %s: %s", address, error)
            return []
        if self.version not in head.versions and not self._by_address:
            newer = head.versions[0] if head.versions else "nothing"
            raise WeightsError(
                f"{address} publishes {newer} now, and {self.version} no more: pull again"
            )
        others = [
            where
            for where, version in head.holders
            if version == self.version
            and where not in self._by_address
            and where not in self.shunned
            and where != self._engine.address
        ]
        random.shuffle(others)
        num_peers = sum(not holder.publisher for holder in self)
        others = others[: max(0, self._max_peers - num_peers)]
        if address not in self._by_address and self.version in head.versions:
            others.insert(0, address)
        met = [await self._connect(where) for where in others]
        return [holder for holder in met if holder is not None]

    def _read_head(self, address: str) -> Head:
        peer = self._engine.connect(address, timeout_s=CONNECT_S)
        return read_head(self._engine, peer, self.manifest.name)

    async def _connect(self, address: str) -> Holder | None:
        """One more holder, if it can be asked."""
        publisher = address in self.publishers
        try:
            peer, places, layout = await asyncio.to_thread(self._open, address)
        except InlayError as error:
            log.info("%s cannot be asked: %s", address, error)
            if not isinstance(error, TransferError) and not publisher:
                self.shunned[address] = str(error)
            return None
        if address in self._by_address:
            return None
        holder = self._add(peer, places, layout, publisher=publisher)
        try:
            if not publisher:
                await holder.look()
                self.count()
        except TransferError as error:
            self.drop(holder, str(error))
            return None
        return holder

    def _open(self, address: str) -> tuple[Peer, Places, Layout]:
        peer = self._engine.connect(address, timeout_s=CONNECT_S)
        if address in self.publishers:
            return peer, *self._own[self.publishers.index(address)]
        manifest, layout = read_offer(self._engine, peer, self.manifest.name, self.version)
        if layout.manifest != self._identity:
            raise WeightsMismatchError(f"{address} has another {manifest.name} {self.version}")
        return peer, Places.of(self.manifest, layout), layout

    def _add(self, peer: Peer, places: Places, layout: Layout, *, publisher: bool) -> Holder:
        near = layout.in_memory and any(
            path.peer == peer.address and path.transport in _MEMORY_OF_HOST
            for path in self._engine.paths()
            if path.state == "ready"
        )
        holder = Holder(self._engine, peer, self.manifest, places, publisher=publisher, near=near)
        self._by_address[holder.address] = holder
        self.count()
        return holder
