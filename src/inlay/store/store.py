"""The store as Python sees it: a client, and what the process contributes."""

import logging
import os
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from inlay.core.errors import InlayError, KeyNotFound, ObjectExists
from inlay.store import _backend
from inlay.store.figures import ClientFigures, DiskFigures
from inlay.store.link import Link
from inlay.store.options import Contribution, Disk, ObjectStat, PutOptions, PutResult
from inlay.store.view import ObjectView
from inlay.transfer import TransferEngine
from inlay.transfer.runtime_dir import shared_token

Key = str | bytes
Ranges = Sequence[tuple[int, int]]
Parents = Sequence[Key | None]

KEEP = PutOptions()
_T = TypeVar("_T")
_EXISTS = 2  # the outcome of a put that found an object and was to fail then
_STORED = 0
_REMOVED = 0
_TIERS = ("memory", "disk")

logger = logging.getLogger(__name__)


class Store:
    """Objects under keys, in memory that all processes of a store share.

    A key is str (its UTF-8) or bytes, 1 to 1024 of them. A value is anything with the buffer
    protocol, a tensor on the CPU or a CUDA device, or (address, length); an empty one is a value. A
    put is all or nothing, and when it has returned, no read that begins later finds an older
    generation. Every call ends within `timeout_s`; the GIL is free while bytes move. Methods may be
    called by any thread. A forked child opens its own store (`StoreClosed`).

    Use `Store.embedded` or `Store.connect`.

    Raises, in every call:
        ArgumentError: a key or value that cannot be.
        StoreTimeout: the time was over. A put may have been stored nevertheless.
        StoreUnavailable: the master, or a node with the only replica, is not reached.
        StoreClosed: after `close`, or in a forked child.
    """

    def __init__(
        self,
        link: _backend.Link | Link,
        engine: TransferEngine | None,
        contribute: Contribution | None,
        *,
        disk: _backend.Disk | None = None,
        may_map: bool = True,
        timeout_s: float = 5.0,
    ) -> None:
        self.timeout_s = timeout_s
        self._finder = link if isinstance(link, Link) else None  # looks for it while this lives
        self._link = link = link.native if isinstance(link, Link) else link
        self._engine = engine
        native = None if engine is None else engine._native
        self._node: _backend.Node | None = None
        if contribute is not None:
            own = contribute.name
            name = f"node-{secrets.token_hex(6)}" if own is None else own

            def tell(address: str) -> None:
                logger.warning(
                    "node '%s' waits: the master at %s has a node of this name, which has to end "
                    "within %g s; else give this one another name",
                    name,
                    address,
                    timeout_s,
                )

            self._node = _backend.Node(
                link,
                native,
                name,
                contribute.tenant,
                contribute.failure_domain or "",
                "",
                contribute.memory_bytes,
                contribute.keep,
                disk,
                timeout_s,
                tell,
            )
        self.client = _backend.Client(link, native, may_map)

    @classmethod
    def embedded(
        cls, *, memory: int | str = "512MiB", disk: Disk | None = None, timeout_s: float = 5.0
    ) -> Self:
        """A store of this process alone: no port, no other process, nothing left but on the disk.

        Args:
            memory: for values, in /dev/shm.
            disk: for what the memory has no room for, and what is put with `durability="disk"`.
            timeout_s: of calls that name none.

        Raises:
            ResourceError: /dev/shm, or the disk, has no room for it.
            ArgumentError: another process uses the disk, or it holds something else.
        """
        name = f"embedded-{os.getpid()}-{secrets.token_hex(4)}"
        contribution = Contribution(memory=memory, name=name, disk=disk)
        opened = _open_disk(contribution)
        # What is found on the disk is older than what is put now.
        epoch = 1 if opened is None else opened.epoch + 1
        link = _backend.local_link(_backend.LocalMaster(epoch, [name]), "default")
        return cls(link, None, contribution, disk=opened, timeout_s=timeout_s)

    @classmethod
    def connect(
        cls,
        master: str,
        *,
        contribute: Contribution | None = None,
        token: bytes | None = None,
        listen: str = "127.0.0.1:0",
        transports: Sequence[str] | None = None,
        timeout_s: float = 5.0,
    ) -> Self:
        """The store whose master listens at `master`.

        Args:
            master: "host:port", several with commas between, of which one is the master, or
                "etcd://host:2379/cluster" of masters that are elected.
            contribute: what this process gives to the pool; None: nothing.
            token: what master and clients must hold; None: this user's on this machine.
            listen: where nodes and clients reach this process's memory.
            transports: as of `TransferEngine`. With "shm" and "local" left out, values of this
                host go through the network, too.
            timeout_s: of calls that name none, and of this one.

        Raises:
            StoreUnavailable: nobody answers there, or with another token or version.
            ArgumentError: another node has this name, or this disk.
            ResourceError: /dev/shm, or the disk, has no room for the contribution.

        Cost: reads what is in use of the disk.
        """
        token = shared_token() if token is None else token
        disk = None if contribute is None else _open_disk(contribute)
        link = Link(master, token, timeout_s=timeout_s)
        engine = TransferEngine(listen, token=token, transports=transports)
        may_map = transports is None or "shm" in transports
        try:
            return cls(link, engine, contribute, disk=disk, may_map=may_map, timeout_s=timeout_s)
        except BaseException:
            engine.close()
            raise

    def put(
        self,
        key: Key,
        value: Any,
        options: PutOptions = KEEP,
        *,
        timeout_s: float | None = None,
    ) -> PutResult:
        """Store a value; return when its replicas have it and all readers can find it.

        Raises:
            ObjectExists: there is one, and `if_exists="error"`.
            StoreFull: no room, and nothing can be evicted; or `durability="disk"`, and no disk of
                its nodes takes it.

        Cost: one write to each node, and one question to the master.
        """
        time = self.time_of(timeout_s)
        outcome, generation = self.client.put(key, value, options.fields, options.parent, time)
        return result_of(key, outcome, generation)

    def upsert(
        self, key: Key, value: Any, options: PutOptions = KEEP, *, timeout_s: float | None = None
    ) -> PutResult:
        """As `put` with `if_exists="replace"`."""
        return self.put(key, value, options.replacing, timeout_s=timeout_s)

    def put_many(
        self,
        keys: Sequence[Key],
        values: Sequence[Any],
        options: PutOptions = KEEP,
        *,
        parents: Parents | None = None,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """Store many, each on its own, with one question to the master for about 4096 of them.

        `parents` are those of the keys, in place of `options.parent`; those that are put with
        them come before what follows them.

        Raises what `put` raises, `ObjectExists` after all others are stored.
        """
        time = self.time_of(timeout_s)
        hint = options.parent if parents is None else parents
        outcomes = self.client.put_many(keys, values, options.fields, hint, time)
        return [result_of(key, *outcome) for key, outcome in zip(keys, outcomes, strict=True)]

    def upsert_many(
        self,
        keys: Sequence[Key],
        values: Sequence[Any],
        options: PutOptions = KEEP,
        *,
        parents: Parents | None = None,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """As `put_many` with `if_exists="replace"`."""
        return self.put_many(keys, values, options.replacing, parents=parents, timeout_s=timeout_s)

    def put_parts(
        self,
        key: Key,
        parts: Sequence[Any],
        options: PutOptions = KEEP,
        *,
        timeout_s: float | None = None,
    ) -> PutResult:
        """Store one value that lies in several buffers, one behind the other."""
        return self.put_parts_many([key], [parts], options, timeout_s=timeout_s)[0]

    def put_parts_many(
        self,
        keys: Sequence[Key],
        parts: Sequence[Sequence[Any]],
        options: PutOptions = KEEP,
        *,
        parents: Parents | None = None,
        timeout_s: float | None = None,
    ) -> list[PutResult]:
        """As `put_many`; each value is a list of buffers."""
        time = self.time_of(timeout_s)
        hint = options.parent if parents is None else parents
        outcomes = self.client.put_parts(keys, parts, options.fields, hint, time)
        return [result_of(key, *outcome) for key, outcome in zip(keys, outcomes, strict=True)]

    def put_parts_each(
        self,
        keys: Sequence[Key],
        parts: Sequence[Sequence[Any]],
        options: PutOptions = KEEP,
        *,
        parents: Parents | None = None,
        room_s: float | None = None,
        timeout_s: float | None = None,
    ) -> list[PutResult | InlayError]:
        """As `put_parts_many`, whatever becomes of those that have no room.

        Args:
            keys, parts, options, parents: as of `put_parts_many`.
            room_s: how long it waits for room, once in the call (20 ms for smaller values later);
                None: most of `timeout_s`.
            timeout_s: as always.

        Returns:
            By key: what became of it; what `put` would have raised where there is no room
            (`StoreFull`; `ArgumentError` where there will never be), or an object
            (`ObjectExists`).
        """
        time = self.time_of(timeout_s)
        room = 0.8 * time if room_s is None else room_s
        hint = options.parent if parents is None else parents
        outcomes = self.client.put_parts_each(keys, parts, options.fields, hint, room, time)
        return [_told_of(key, outcome) for key, outcome in zip(keys, outcomes, strict=True)]

    def get(self, key: Key, *, timeout_s: float | None = None) -> bytes:
        """The value. `KeyNotFound` where there is none; `ObjectDamaged` rather than wrong bytes.

        Cost: one read from a replica, and a question to the master if its place was not asked for
        within the last 2 seconds. Memory of this host is copied without asking anybody.
        """
        value = self.client.get(key, self.time_of(timeout_s))
        if value is None:
            raise missing(key)
        return value

    def get_or_none(self, key: Key, *, timeout_s: float | None = None) -> bytes | None:
        """The value, or None where there is none."""
        return self.client.get(key, self.time_of(timeout_s))

    def get_many(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> list[bytes | InlayError | None]:
        """The values; None where there is none, `ObjectDamaged` (not raised) for a damaged one."""
        return self.client.get_many(keys, self.time_of(timeout_s))

    def get_into(
        self, key: Key, buffer: Any, offset: int = 0, *, timeout_s: float | None = None
    ) -> int:
        """Copy the value into `buffer` from `offset` on; return its size.

        Raises:
            KeyNotFound: there is none; the buffer is as it was.
            ArgumentError: it does not fit.
        """
        size = self.client.get_into(key, buffer, offset, self.time_of(timeout_s))
        if size is None:
            raise missing(key)
        return size

    def get_into_many(
        self, keys: Sequence[Key], buffers: Sequence[Any], *, timeout_s: float | None = None
    ) -> list[int | InlayError | None]:
        """Copy each value into its buffer, whatever becomes of the others.

        Returns:
            By key: the value's size; None where there is no object; what `get_into` would have
            raised where the value does not fit (`ArgumentError`) or is damaged (`ObjectDamaged`).
        """
        time = self.time_of(timeout_s)
        return self.client.get_into_many(keys, buffers, False, None, time)

    def get_parts(
        self,
        key: Key,
        buffers: Sequence[Any],
        ranges: Ranges | None = None,
        *,
        timeout_s: float | None = None,
    ) -> int:
        """Fill several buffers from one value; return the value's size.

        Args:
            key: of the object.
            buffers: to fill. Without `ranges` they take the value one behind the other, and have
                its size together.
            ranges: (offset, length) in the value, one for each buffer. Of parts no checksum is
                compared.
            timeout_s: as always.
        """
        sizes = self.get_parts_many(
            [key], [buffers], None if ranges is None else [ranges], timeout_s=timeout_s
        )
        return only(key, sizes)

    def get_parts_many(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Sequence[Any]],
        ranges: Sequence[Ranges] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> list[int | InlayError | None]:
        """`get_parts` of many; results as those of `get_into_many`."""
        return self.client.get_into_many(keys, buffers, True, ranges, self.time_of(timeout_s))

    def view(self, key: Key, *, verify: bool = False, timeout_s: float | None = None) -> ObjectView:
        """The value in place: `with store.view(key) as memory: ...`, a read-only memoryview.

        On the same host nothing is copied: while the view is open, its memory is pinned, and stays
        as it is even when the object is removed or replaced. Values elsewhere are copied first.

        Args:
            key: of the object.
            verify: compare the checksum, which takes a pass over the value.
            timeout_s: as always.
        """
        view = self.client.view(key, verify, self.time_of(timeout_s))
        if view is None:
            raise missing(key)
        return ObjectView(view)

    def exists(self, key: Key, *, timeout_s: float | None = None) -> bool:
        """Whether there is an object, asked of the master."""
        return self.exists_many([key], timeout_s=timeout_s)[0]

    def exists_many(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> list[bool]:
        """Whether there are objects, with one question."""
        return self.client.exists(keys, self.time_of(timeout_s))

    def stat(self, key: Key, *, timeout_s: float | None = None) -> ObjectStat:
        """What the master knows of an object. Raises `KeyNotFound`."""
        found = self.client.stat(key, self.time_of(timeout_s))
        if found is None:
            raise missing(key)
        return stat_of(found)

    def remove(self, key: Key, *, timeout_s: float | None = None) -> None:
        """Remove an object; no read that begins later finds it. Raises `KeyNotFound`."""
        if not self.remove_many([key], timeout_s=timeout_s)[0]:
            raise missing(key)

    def remove_many(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> list[bool]:
        """Remove objects; False for each that was not there."""
        outcomes = self.client.remove(keys, True, self.time_of(timeout_s))
        return [outcome == _REMOVED for outcome in outcomes]

    def remove_group(self, group: str, *, timeout_s: float | None = None) -> int:
        """Remove all objects of a group; return how many."""
        return self.client.remove_group(group, self.time_of(timeout_s))

    def remove_prefix(self, prefix: Key, *, timeout_s: float | None = None) -> int:
        """Remove all objects whose keys begin so: a scan of all keys, for administrators."""
        return self.client.remove_prefix(prefix, self.time_of(timeout_s))

    @property
    def node(self) -> str | None:
        """Name of the node that this process contributes."""
        return None if self._node is None else self._node.name

    @property
    def adopted_objects(self) -> int:
        """How many an earlier process of the node's name left, which are there again."""
        return 0 if self._node is None else self._node.adopted_records

    def disk_figures(self) -> DiskFigures | None:
        """Of the disk that this process contributes; None without one, or after `close`.

        Cost: iterates over the log's index.
        """
        told = None if self._node is None else self._node.disk_figures()
        return None if told is None else msgspec.convert(told, DiskFigures)

    def figures(self) -> ClientFigures:
        """What this store's client has done; also after `close`."""
        return ClientFigures(**self.client.counts())

    def close(self) -> None:
        """Give back what is held, and leave with what was contributed."""
        if not self._link.made_here:
            return
        self.client.close()
        if self._finder is not None:
            self._finder.close()
        if self._node is not None:
            self._node.close()
        if self._engine is not None:
            self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def time_of(self, timeout_s: float | None) -> float:
        """The call's time limit, or the store's."""
        return self.timeout_s if timeout_s is None else timeout_s


def _open_disk(contribution: Contribution) -> _backend.Disk | None:
    disk = contribution.disk
    if disk is None:
        return None
    return _backend.Disk(os.fspath(disk.path), disk.size_bytes, contribution.tenant)


def _text(key: Key) -> str:
    return repr(key if len(key) <= 80 else key[:80])


def only(key: Key, results: Sequence[_T | InlayError | None]) -> _T:
    """The result of a call with one key."""
    result = results[0]
    if isinstance(result, InlayError):
        raise result
    if result is None:
        raise missing(key)
    return result


def stat_of(found: tuple[Any, ...]) -> ObjectStat:
    """What the compiled client tells of an object."""
    generation, size, flags, wanted, lease_ms, hits, replicas = found
    return ObjectStat(
        generation=generation,
        size_bytes=size,
        replicas=tuple((node, _TIERS[tier]) for node, tier in replicas),
        wanted_replicas=wanted,
        soft_pin=bool(flags & 2),
        hard_pin=bool(flags & 4),
        mutable=bool(flags & 1),
        lease_left_s=lease_ms / 1000,
        hits=hits,
    )


def missing(key: Key) -> KeyNotFound:
    """What a miss raises."""
    return KeyNotFound(f"there is no object {_text(key)}: never put, removed, evicted, or lost")


def _told_of(key: Key, outcome: tuple[int, int] | InlayError) -> PutResult | InlayError:
    if isinstance(outcome, InlayError):
        return outcome
    try:
        return result_of(key, *outcome)
    except ObjectExists as error:
        return error


def result_of(key: Key, outcome: int, generation: int) -> PutResult:
    """What the compiled client says of a put. Raises `ObjectExists`."""
    if outcome == _EXISTS:
        raise ObjectExists(
            f"there is an object {_text(key)} of generation {generation}; "
            'put with if_exists="replace" or "keep", or remove it'
        )
    return PutResult(generation, outcome == _STORED)
