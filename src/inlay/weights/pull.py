"""Pull a version from its publishers and from all who hold it, and hold it for others.

    held = pull(engine, ["10.0.0.1:17100"], "policy", landing=MemoryLanding())
    held.content(held.manifest.by_name["lm_head.weight"][0])
    held.close()

Each piece is compared with its checksum before it counts, and before others may have it. What a
holder sends damaged comes from another one.
"""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from inlay.core.errors import (
    ArgumentError,
    ConfigError,
    EngineClosedError,
    InlayError,
    TransferError,
    WeightsError,
    WeightsMismatchError,
)
from inlay.transfer import Peer, TransferEngine, crc32c
from inlay.weights.choice import ASKED, HERE, NOTHING, Known, choose
from inlay.weights.holder import Holder, Places
from inlay.weights.landing import Bytes, Landing
from inlay.weights.manifest import Entry, Manifest, Place, union
from inlay.weights.offer import Head, Offer, identity, read_head, read_offer
from inlay.weights.publisher import HOLD_TOPIC, Holds

log = logging.getLogger(__name__)

_TELL_S = 2.0
_MEET_S = 0.1
_MAX_DAMAGED = 3  # pieces of one holder; then it is not asked any more
_CONNECT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class PullConfig:
    """How a version is pulled.

    Attributes:
        per_holder: transfers under way from one holder, 1 to 64.
        max_holders: peers that are asked at the same time besides publishers, 1 to 256.
        bucket_s: how long a transfer should take, in seconds; so many pieces are asked for at once.
        bucket_bytes: but no more than this.
        look_s: time between two looks at what a holder has.
        deadline_s: for one transfer; then its holder counts as gone.
        timeout_s: without any new piece; then the pull fails.
    """

    per_holder: int = 2
    max_holders: int = 16
    bucket_s: float = 0.02
    bucket_bytes: int = 32 << 20
    look_s: float = 0.02
    deadline_s: float = 30.0
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("per_holder", 1, 64), ("max_holders", 1, 256), ("bucket_s", 1e-4, 10.0),
            ("bucket_bytes", 4096, 1 << 30), ("look_s", 1e-3, 10.0), ("deadline_s", 0.1, 3600.0),
            ("timeout_s", 0.1, 86400.0),
        ):  # fmt: skip
            if not low <= (value := getattr(self, name)) <= high:
                raise ConfigError(f"{name} must be in {low}..{high}, got {value}")


class Source(Protocol):
    """A version that is here already: `Held` is one."""

    manifest: Manifest

    def content(self, entry: Entry) -> Bytes:
        """The bytes of an entry."""
        ...


class Keeping(Protocol):
    """A landing that keeps whole entries."""

    def content(self, entry: Entry) -> Bytes:
        """The bytes of an entry."""
        ...


@dataclass(frozen=True)
class PullReport:
    """What a pull did.

    Attributes:
        seconds: from the first question to the last piece.
        taken_bytes: by address of who sent them.
        kept_bytes: that were here already.
        damaged: pieces that came damaged and were asked for again.
    """

    seconds: float
    taken_bytes: dict[str, int]
    kept_bytes: int
    damaged: int


class Held:
    """A version that is here; others have it from here until `close`.

    Attributes:
        manifest: what it consists of.
        report: how it came.
    """

    def __init__(self, swarm: "_Swarm", report: PullReport) -> None:
        self.manifest = swarm.manifest
        self.report = report
        self._swarm = swarm
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._tell, name="inlay-held", daemon=True)
        self._thread.start()

    def content(self, entry: Entry) -> Bytes:
        """The bytes of an entry, to be read; valid until `close`.

        Raises:
            ArgumentError: the landing keeps parts of tensors, no entries.
        """
        if not hasattr(self._swarm.landing, "content"):
            raise ArgumentError("this landing keeps parts of tensors: read its arrays")
        keeping: Keeping = self._swarm.landing
        return keeping.content(entry)

    def close(self) -> None:
        """Offer it no more; memory is given back, a directory stays."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.join()
            self._swarm.leave()

    def __enter__(self) -> "Held":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _tell(self) -> None:
        """Publishers forget who is silent."""
        while not self._closing.wait(_TELL_S):
            self._swarm.tell(whole=True)


def pull(
    engine: TransferEngine,
    publishers: Sequence[str],
    name: str,
    *,
    landing: Landing,
    version: str | None = None,
    previous: Source | None = None,
    config: PullConfig | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Held:
    """Pull a version and return when all that is wanted is here.

    Args:
        engine: listens where other peers reach it, unless nothing is to be had from here.
        publishers: addresses, "host:port"; where several hold a part each, all of them.
        version: None: the newest that all publishers have.
        previous: another version that is here: entries that are equal in both are copied.
        progress: called with bytes so far and in all.

    Raises:
        WeightsError: there is no such checkpoint or version, nobody has a piece any more, or
            nothing came for `timeout_s`.
        WeightsMismatchError: publishers contradict each other, or the landing wants something else.
        TransferError: no publisher can be reached.

    Cost: besides what the landing takes, at most `bucket_bytes` are under way for each holder; one
        CRC32C over all.
    """
    if not publishers:
        raise ArgumentError("name at least one publisher, host:port")
    began_s = time.monotonic()
    swarm = _Swarm(engine, publishers, name, version, landing, config or PullConfig())
    try:
        kept = swarm.keep(previous)
        swarm.offer()
        asyncio.run(swarm.run(progress))
        landing.finish()
        swarm.tell(whole=True)
    except BaseException:
        swarm.leave()
        raise
    report = PullReport(
        seconds=time.monotonic() - began_s,
        taken_bytes=dict(swarm.taken),
        kept_bytes=kept,
        damaged=swarm.damaged,
    )
    return Held(swarm, report)


def newest(engine: TransferEngine, publishers: Sequence[str], name: str) -> str | None:
    """The newest version that all publishers have; None: there is none.

    Raises:
        WeightsError: one of them publishes nothing of this name.
        TransferError: one cannot be reached.
    """
    heads = [
        read_head(engine, engine.connect(address, timeout_s=_CONNECT_S), name)
        for address in publishers
    ]
    common = set(heads[0].versions).intersection(*(head.versions for head in heads[1:]))
    return next((version for version in heads[0].versions if version in common), None)


class _Swarm:
    """One pull: what is wanted, who has it, and what is under way. Legend: P pieces."""

    def __init__(
        self,
        engine: TransferEngine,
        publishers: Sequence[str],
        name: str,
        version: str | None,
        landing: Landing,
        config: PullConfig,
    ) -> None:
        self._engine = engine
        self._publishers = tuple(publishers)
        self._config = config
        self.landing = landing
        self.taken: Counter[str] = Counter()
        self.damaged = 0
        self._holders: dict[str, Holder] = {}
        self._shunned: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: InlayError | None = None
        self._offer: Offer | None = None
        if version is None:
            version = newest(engine, publishers, name)
            if version is None:
                raise WeightsError(f"{', '.join(publishers)} have no common version of {name}")
        self.version = version
        peers = [engine.connect(address, timeout_s=_CONNECT_S) for address in publishers]
        offers = [read_offer(engine, peer, name, version) for peer in peers]
        own = [manifest for manifest, _ in offers]
        self.manifest, places = union(own, publishers)
        self._identity = identity(self.manifest.to_bytes())
        self._own_places = [
            self._places_of(number, manifest, Places.of(manifest, layout), places)
            for number, (manifest, layout) in enumerate(offers)
        ]
        self._missing_P = landing.open(engine, self.manifest)
        self._under_way_P = np.zeros_like(self._missing_P)
        self._total = int(self.manifest.sizes_P[self._missing_P].sum())
        self._left = int(self._missing_P.sum())
        self._memory: Bytes = np.frombuffer(memoryview(landing.segment), np.uint8)
        own_draws = np.random.default_rng(int(engine.engine_id, 16))
        self._order_P = own_draws.permutation(self.manifest.num_pieces).astype(np.int64)
        self._have_P = np.zeros(self.manifest.num_pieces, np.uint8)
        self._count()
        for number, peer in enumerate(peers):
            self._add(peer, self._own_places[number], publisher=True)

    # What there is from the beginning

    def keep(self, previous: Source | None) -> int:
        """Copy entries that another version has, too; returns their bytes."""
        if previous is None:
            return 0
        known = {
            (entry.digest, entry.dtype, entry.shape): entry for entry in previous.manifest.entries
        }
        kept = 0
        for number, entry in enumerate(self.manifest.entries):
            same = known.get((entry.digest, entry.dtype, entry.shape))
            pieces = self.manifest.pieces_of(number)
            if same is None or not self._missing_P[pieces.start : pieces.stop].any():
                continue
            content = previous.content(same)
            for piece in pieces:
                if not self._missing_P[piece]:
                    continue
                start = int(self.manifest.starts_P[piece]) - entry.start
                part = content[start : start + int(self.manifest.sizes_P[piece])]
                place = self.landing.place(piece)
                assert place is not None, "nothing else is under way yet"
                room = self._memory[place : place + len(part)]
                room[:] = part
                if crc32c(room) != self.manifest.checksums_P[piece]:
                    self.landing.drop(piece)
                    continue
                self._took(piece, room)
                kept += len(part)
        return kept

    def offer(self) -> None:
        """Let others have what is here, where whole pieces stay."""
        data, stretches = self.landing.shared()
        if data:
            self._offer = Offer(self._engine, self.manifest, data, stretches, NOTHING)
            self._offer.have_P[: len(self._have_P)] = self._have_P
            self._have_P = self._offer.have_P
            self.tell(whole=False)

    # The pull

    async def run(self, progress: Callable[[int, int], None] | None) -> None:
        """Return when nothing is missing."""
        self._changed = asyncio.Event()
        self._progressed_s = time.monotonic()
        publishers = list(self._holders.values())
        for address in self._publishers:  # peers first: they spare the publishers
            await self._meet_publisher(address)
        for holder in publishers:
            self._start(holder)
        meeting = asyncio.create_task(self._meet())
        try:
            while self._left:
                await self._change(0.25)
                if progress is not None:
                    done = self._total - int(self.manifest.sizes_P[self._missing_P].sum())
                    progress(done, self._total)
                self._check()
        finally:
            tasks = [meeting, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for holder in self._holders.values():
                holder.close()

    def _check(self) -> None:
        """Fail where nothing can come any more."""
        if self._failure is not None:
            raise self._failure
        silent_s = time.monotonic() - self._progressed_s
        shunned = "; ".join(f"{where}: {why}" for where, why in self._shunned.items())
        nobody = not self._holders and all(where in self._shunned for where in self._publishers)
        if nobody or silent_s > self._config.timeout_s:
            raise WeightsError(
                f"{self._left} of {self.manifest.num_pieces} pieces of {self.manifest.name} "
                f"{self.version} did not come; {len(self._holders)} holders are left"
                + (f" ({shunned})" if shunned else "")
                + ("" if nobody else f", and nothing came for {silent_s:.0f} s")
            )

    async def _meet(self) -> None:
        """Learn of other holders from publishers, which hear of this one."""
        told_s = 0.0
        while True:
            for address in self._publishers:
                await self._meet_publisher(address)
            if time.monotonic() - told_s > _TELL_S:
                told_s = time.monotonic()
                await asyncio.to_thread(self.tell, whole=False)
            await asyncio.sleep(_MEET_S)

    async def _meet_publisher(self, address: str) -> None:
        if address in self._shunned:
            return
        try:
            head = await asyncio.to_thread(self._read_head, address)
        except InlayError as error:
            log.debug("publisher %s: %s", address, error)
            return
        if self.version not in head.versions and len(self._holders) == 0:
            newer = head.versions[0] if head.versions else "nothing"
            self._failure = WeightsError(
                f"{address} publishes {newer} now, and {self.version} no more: pull again"
            )
            return
        if address not in self._holders and self.version in head.versions:
            await self._connect(address)
        others = [
            where
            for where, version in head.holders
            if version == self.version
            and where not in self._holders
            and where not in self._shunned
            and where != self._engine.address
        ]
        random.shuffle(others)
        num_peers = sum(not holder.publisher for holder in self._holders.values())
        for where in others[: max(0, self._config.max_holders - num_peers)]:
            await self._connect(where)

    def _read_head(self, address: str) -> Head:
        peer = self._engine.connect(address, timeout_s=_CONNECT_S)
        return read_head(self._engine, peer, self.manifest.name)

    async def _connect(self, address: str) -> None:
        """Ask one more holder from now on."""
        try:
            peer, places = await asyncio.to_thread(self._open, address)
        except InlayError as error:
            log.info("%s cannot be asked: %s", address, error)
            if not isinstance(error, TransferError) and address not in self._publishers:
                self._shunned[address] = str(error)
            return
        if address in self._holders:
            return
        holder = self._add(peer, places, publisher=address in self._publishers)
        try:
            if not holder.publisher:
                await holder.look()
                self._count()
        except TransferError as error:
            self._drop(holder, str(error))
        else:
            self._start(holder)

    def _open(self, address: str) -> tuple[Peer, Places]:
        peer = self._engine.connect(address, timeout_s=_CONNECT_S)
        if address in self._publishers:
            return peer, self._own_places[self._publishers.index(address)]
        manifest, layout = read_offer(self._engine, peer, self.manifest.name, self.version)
        if layout.manifest != self._identity:
            raise WeightsMismatchError(f"{address} has another {manifest.name} {self.version}")
        return peer, Places.of(self.manifest, layout)

    def _add(self, peer: Peer, places: Places, *, publisher: bool) -> Holder:
        holder = Holder(self._engine, peer, self.manifest, places, publisher=publisher)
        self._holders[holder.address] = holder
        self._count()
        return holder

    def _start(self, holder: Holder) -> None:
        calls = [self._work(holder) for _ in range(self._config.per_holder)]
        if not holder.publisher:
            calls.append(self._look(holder))
        for call in calls:
            task = asyncio.create_task(call)
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a pull ends", exc_info=error)
            self._failure = (
                error
                if isinstance(error, InlayError)
                else WeightsError(f"the pull of {self.manifest.name} failed: {error!r}")
            )

    def _drop(self, holder: Holder, why: str, *, shun: bool = False) -> None:
        if self._holders.get(holder.address) is not holder:
            return
        log.info("%s is not asked any more: %s", holder.address, why)
        del self._holders[holder.address]
        if shun:
            self._shunned[holder.address] = why
        self._count()
        self._tell_change()

    async def _look(self, holder: Holder) -> None:
        """Keep true what a peer is known to have."""
        try:
            while self._holders.get(holder.address) is holder:
                if await holder.look():
                    self._count()
                    self._tell_change()
                if holder.has_P.all():
                    return
                await asyncio.sleep(self._config.look_s)
        except TransferError as error:
            self._drop(holder, str(error))

    async def _work(self, holder: Holder) -> None:
        """Ask a holder again and again, for what it has and this one lacks."""
        while self._left and self._holders.get(holder.address) is holder:
            pieces = self._choose(holder)
            if not len(pieces):
                await self._change(0.05)
                continue
            try:
                await self._fetch(holder, pieces)
            except TransferError as error:
                self._drop(holder, str(error))
            await asyncio.sleep(0)  # a transfer that was over at once has let nobody else act

    def _choose(self, holder: Holder) -> npt.NDArray[np.int64]:
        config, piece_bytes = self._config, self.manifest.piece_bytes
        limit = max(1, config.bucket_bytes // piece_bytes)
        wanted_P = self._missing_P & ~self._under_way_P
        helped = self._under_way_P.any() or (wanted_P & (self._copies_P > 0)).any()
        return choose(
            Known(
                wanted_P=wanted_P,
                copies_P=self._copies_P,
                asked_P=self._asked_P,
                order_P=self._order_P,
            ),
            holder.has_P,
            publisher=holder.publisher,
            idle=not helped,
            limit=holder.num_pieces(piece_bytes, config.bucket_s, limit),
        )

    async def _fetch(self, holder: Holder, pieces: npt.NDArray[np.int64]) -> None:
        placed: dict[int, int] = {}
        for piece in pieces.tolist():
            place = self.landing.place(piece)
            if place is None:
                break
            placed[piece] = place
        if not placed:
            await self._change(0.05)
            return
        pieces = np.fromiter(placed, np.int64, len(placed))
        offsets = np.fromiter(placed.values(), np.int64, len(placed))
        self._under_way_P[pieces] = True
        self._have_P[pieces] = ASKED
        sizes_P = self.manifest.sizes_P
        began_s = time.monotonic()
        waiting = set(placed)
        try:
            moves = holder.transfers(pieces, sizes_P, self.landing.segment, offsets)
            await self._engine.submit(moves, deadline_s=self._config.deadline_s)
            holder.took(int(sizes_P[pieces].sum()), began_s)
            for piece, place in placed.items():
                content = self._memory[place : place + int(sizes_P[piece])]
                if crc32c(content) != self.manifest.checksums_P[piece]:
                    self._damage(holder, piece)
                    continue
                waiting.discard(piece)
                self._took(piece, content)
                holder.taken_bytes += len(content)
                self.taken[holder.address] += len(content)
        finally:
            for piece in waiting:
                self.landing.drop(piece)
                self._have_P[piece] = NOTHING
            self._under_way_P[pieces] = False
        self._tell_change()

    def _took(self, piece: int, content: Bytes) -> None:
        self.landing.take(piece, content)
        self._missing_P[piece] = False
        self._have_P[piece] = HERE
        self._left -= 1
        self._progressed_s = time.monotonic()

    def _damage(self, holder: Holder, piece: int) -> None:
        self.damaged += 1
        holder.damaged += 1
        log.warning("piece %d from %s is damaged; it is asked for again", piece, holder.address)
        if holder.damaged >= _MAX_DAMAGED:
            changed = "was it changed after it was published?" if holder.publisher else ""
            self._drop(holder, f"{holder.damaged} pieces came damaged {changed}".strip(), shun=True)

    def _count(self) -> None:
        """Sum up what peers have and have asked for."""
        num = self.manifest.num_pieces
        self._copies_P, self._asked_P = np.zeros(num, np.int32), np.zeros(num, np.int32)
        for holder in self._holders.values():
            if not holder.publisher:
                self._copies_P += holder.has_P
                self._asked_P += holder.asked_P

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)

    def _places_of(
        self, number: int, own: Manifest, places: Places, of_union: Sequence[Place]
    ) -> Places:
        if len(self._publishers) == 1:
            return places
        return places.in_union(own, self.manifest, of_union, number)

    # What publishers hear

    def tell(self, *, whole: bool, leaves: bool = False) -> None:
        """Say to publishers what is here; those that do not answer miss it."""
        if self._offer is None and not whole:  # nothing is to be had from here
            return
        said = Holds(
            name=self.manifest.name,
            version=self.version,
            address=self._engine.address if self._offer is not None else "",
            whole=whole,
            leaves=leaves,
        )
        for address in self._publishers:
            with contextlib.suppress(TransferError, EngineClosedError):
                peer = self._engine.connect(address, timeout_s=_CONNECT_S)
                peer.send(HOLD_TOPIC, msgspec.msgpack.encode(said))

    def leave(self) -> None:
        """Offer nothing any more, and let go of the landing."""
        self.tell(whole=False, leaves=True)
        if self._offer is not None:
            self._offer.close()
        with contextlib.suppress(TransferError, TimeoutError):
            self.landing.close()
