"""One pull under way: whom is asked for what, and what becomes of it. Legend: P pieces, N some."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import numpy as np

from inlay.core.errors import FileTransferError, InlayError, TransferError, WeightsError
from inlay.transfer import TransferEngine
from inlay.weights.choice import NOTHING, Known, choose
from inlay.weights.holder import Holder
from inlay.weights.holders import Holders
from inlay.weights.landing import Landing, Numbers
from inlay.weights.offer import Offer
from inlay.weights.pieces import Pieces, Source
from inlay.weights.publisher import Holds
from inlay.weights.pull_config import PullConfig

log = logging.getLogger(__name__)

_TELL_S = 2.0
_MEET_S = 0.1
_MAX_DAMAGED = 3  # pieces of one holder; then it is not asked any more


class Swarm:
    """See the module.

    Attributes:
        manifest: of what is pulled.
        taken: bytes by the address of who sent them.
        damaged: pieces that came damaged.
    """

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
        self._config = config
        self.landing = landing
        self.taken: Counter[str] = Counter()
        self.damaged = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: InlayError | None = None
        self._offer: Offer | None = None
        self._holders = Holders(engine, publishers, name, version, max_peers=config.max_holders)
        self.manifest = self._holders.manifest
        self._pieces = Pieces(self.manifest, landing, landing.open(engine, self.manifest))
        own_draws = np.random.default_rng(int(engine.engine_id, 16))
        self._order_P = own_draws.permutation(self.manifest.num_pieces).astype(np.int64)

    def keep(self, previous: Source | None) -> int:
        """Copy entries that another version has, too; returns their bytes."""
        return 0 if previous is None else self._pieces.keep(previous)

    def offer(self) -> None:
        """Let others have what is here, where whole pieces stay."""
        data, stretches = self.landing.shared()
        if data:
            self._offer = Offer(
                self._engine,
                self.manifest,
                data,
                stretches,
                in_memory=self.landing.in_memory,
                first=NOTHING,
            )
            have_P = self._offer.have_P[: self.manifest.num_pieces]
            have_P[:] = self._pieces.have_P
            self._pieces.have_P = have_P
            self.tell(whole=False)

    async def run(self, progress: Callable[[int, int], None] | None) -> None:
        """Return when nothing is missing."""
        pieces = self._pieces
        self._changed = asyncio.Event()
        publishers = list(self._holders)
        if (pieces.missing_P & ~self._holders.near_P).any():
            for holder in await self._holders.meet():  # peers first: they spare the publishers
                self._start(holder)
        for holder in publishers:
            self._start(holder)
        self._begin(self._meet())
        try:
            while pieces.left:
                await self._change(0.25)
                if progress is not None:
                    progress(pieces.total_bytes - pieces.missing_bytes, pieces.total_bytes)
                self._check()
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._holders.close()

    def tell(self, *, whole: bool, leaves: bool = False) -> None:
        """Say to publishers what is here."""
        if self._offer is None and not whole:  # nothing is to be had from here
            return
        address = self._engine.address if self._offer is not None else ""
        self._holders.tell(
            Holds(
                name=self.manifest.name,
                version=self.manifest.version,
                address=address,
                whole=whole,
                leaves=leaves,
            )
        )

    def leave(self) -> None:
        """Offer nothing any more, and let go of the landing."""
        self.tell(whole=False, leaves=True)
        if self._offer is not None:
            self._offer.close()
        with contextlib.suppress(TransferError, TimeoutError):
            self.landing.close()

    def _check(self) -> None:
        """Fail where nothing can come any more."""
        if self._failure is not None:
            raise self._failure
        silent_s = time.monotonic() - self._pieces.progressed_s
        shunned = "; ".join(f"{where}: {why}" for where, why in self._holders.shunned.items())
        nobody = self._holders.nobody_comes_back
        if nobody or silent_s > self._config.timeout_s:
            raise WeightsError(
                f"{self._pieces.left} of {self.manifest.num_pieces} pieces of "
                f"{self.manifest.name} {self.manifest.version} did not come, "
                f"{self._pieces.some_missing()} among them; "
                f"{len(self._holders)} holders are left"
                + (f" ({shunned})" if shunned else "")
                + ("" if nobody else f", and nothing came for {silent_s:.0f} s")
            )

    def _start(self, holder: Holder) -> None:
        for _ in range(self._config.per_holder):
            self._begin(self._work(holder))
        if not holder.publisher:
            self._begin(self._look(holder))

    def _begin(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            if isinstance(error, InlayError):
                self._failure = error
            else:
                log.error("a pull ends", exc_info=error)
                self._failure = WeightsError(f"{self.manifest.name} is not pulled: {error!r}")
            self._tell_change()

    async def _meet(self) -> None:
        """Learn of other holders from publishers, which hear of this one."""
        told_s = time.monotonic()
        while True:
            await asyncio.sleep(_MEET_S)
            for holder in await self._holders.meet():
                self._start(holder)
            if time.monotonic() - told_s > _TELL_S:
                told_s = time.monotonic()
                await asyncio.to_thread(self.tell, whole=False)

    async def _look(self, holder: Holder) -> None:
        """Keep true what a peer is known to have."""
        try:
            while holder in self._holders:
                if await holder.look():
                    self._holders.count()
                    self._tell_change()
                if holder.has_P.all():
                    return
                await asyncio.sleep(self._config.look_s)
        except TransferError as error:
            self._drop(holder, str(error))

    async def _work(self, holder: Holder) -> None:
        """Ask a holder again and again, for what it has and this one lacks."""
        while self._pieces.left and holder in self._holders:
            pieces_N, offsets_N = self._pieces.begin(self._choose(holder))
            if not len(pieces_N):
                await self._change(0.05)
                continue
            try:
                await self._fetch(holder, pieces_N, offsets_N)
            except FileTransferError as error:  # its files are cut off, or its disk fails
                self._drop(holder, f"{error}{_changed(holder)}", shun=True)
            except TransferError as error:
                self._drop(holder, str(error))
            await asyncio.sleep(0)  # a transfer that was over at once has let nobody else act

    def _choose(self, holder: Holder) -> Numbers:
        config, piece_bytes, holders = self._config, self.manifest.piece_bytes, self._holders
        limit = max(1, config.bucket_bytes // piece_bytes)
        if not holder.near:  # who copies holds up nobody else's link
            limit = holder.num_pieces(piece_bytes, config.bucket_s, limit)
        wanted_P = self._pieces.wanted_P
        if not holder.near:
            wanted_P &= ~holders.near_P
        helped = self._pieces.any_under_way or (wanted_P & (holders.copies_P > 0)).any()
        return choose(
            Known(
                wanted_P=wanted_P,
                copies_P=holders.copies_P,
                asked_P=holders.asked_P,
                order_P=self._order_P,
            ),
            holder.has_P,
            publisher=holder.publisher and not holder.near,
            idle=not helped,
            limit=limit,
        )

    async def _fetch(self, holder: Holder, pieces_N: Numbers, offsets_N: Numbers) -> None:
        """Have a holder's pieces land, and take those that are what they should be."""
        sizes_P = self.manifest.sizes_P
        began_s = time.monotonic()
        try:
            moves = holder.transfers(pieces_N, sizes_P, self.landing.segment, offsets_N)
            transfers = [ranges for _, ranges in moves]
            deadline_s = self._config.deadline_s
            batch = self._engine.submit(transfers, deadline_s=deadline_s, checksum=True)
            await batch
        except BaseException:
            self._pieces.give_up(pieces_N)
            self._tell_change()
            raise
        holder.took(int(sizes_P[pieces_N].sum()), began_s)
        good_N = np.zeros(len(pieces_N), np.bool_)
        for index, (which, _) in enumerate(moves):
            checksum = batch.checksum(index)
            good_N[which] = self._pieces.check(pieces_N[which], offsets_N[which], checksum)
        self._pieces.end(pieces_N, good_N)
        self.taken[holder.address] += int(sizes_P[pieces_N[good_N]].sum())
        if not good_N.all():
            self._damage(holder, pieces_N[~good_N])
        self._tell_change()

    def _damage(self, holder: Holder, pieces_N: Numbers) -> None:
        self.damaged += len(pieces_N)
        holder.damaged += len(pieces_N)
        log.warning(
            "pieces %s from %s are damaged; they are asked for again",
            pieces_N.tolist(),
            holder.address,
        )
        if holder.damaged >= _MAX_DAMAGED:
            why = f"{holder.damaged} pieces came damaged{_changed(holder)}"
            self._drop(holder, why, shun=True)

    def _drop(self, holder: Holder, why: str, *, shun: bool = False) -> None:
        self._holders.drop(holder, why, shun=shun)
        self._tell_change()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), timeout_s)


def _changed(holder: Holder) -> str:
    """What may have become of a directory that is offered."""
    return ": was it changed after it was published?" if holder.publisher else ""
