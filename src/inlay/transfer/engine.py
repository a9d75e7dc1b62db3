"""The engine as Python sees it: arguments, defaults, and the end of the process."""

import atexit
import os
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from inlay.core.errors import ConfigError, EngineClosedError, WaitTimeoutError
from inlay.transfer import _backend
from inlay.transfer._backend import (
    Batch,
    Peer,
    Ranges,
    RemoteSegment,
    RemoteView,
    Segment,
    SegmentView,
    Transfer,
)
from inlay.transfer.asyncio import wait_for_message
from inlay.transfer.directory import Names, open_directory
from inlay.transfer.kinds import Access, Op
from inlay.transfer.messages import Message
from inlay.transfer.paths import PathInfo, PortCounts
from inlay.transfer.plugins import find_plugins
from inlay.transfer.runtime_dir import runtime_dir, shared_token

TrafficClass = Literal["interactive", "background"]
WEIGHTS: dict[TrafficClass, int] = {"interactive": 8, "background": 1}


@dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """What a user may change of an engine.

    Attributes:
        spin_us: how long a waiting thread, or the engine's after an answer, looks for more bytes
            before it sleeps: 0 to 10^6. Waking a sleeping core takes about 40 us, most answers 10
            to 50. Where only one core is usable nobody spins.
        traffic_class: what it gets of a network card that other engines of this user want, too,
            over tcp: "interactive" 8 parts, "background" 1. An engine that is alone gets all.
        nic_bandwidths: bytes per second that network cards carry, by name, e.g. {"eth0": 12.5e9};
            learned for others, which takes up to a second of load.
    """

    spin_us: int = 50
    traffic_class: TrafficClass = "interactive"
    nic_bandwidths: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.spin_us <= 1_000_000:
            raise ConfigError(f"spin_us must be in 0..1000000, got {self.spin_us}")
        if self.traffic_class not in WEIGHTS:
            raise ConfigError(
                f"traffic_class must be 'interactive' or 'background', got {self.traffic_class!r}"
            )
        for name, bandwidth in self.nic_bandwidths.items():
            if not 0 < bandwidth < float("inf"):
                raise ConfigError(
                    f"nic_bandwidths[{name!r}] must be bytes per second above 0, got {bandwidth}"
                )


class TransferEngine:
    """Moves bytes between registered memories of this process and of peers.

    An engine has one thread, which sleeps when nothing is to be done; bytes move without the GIL.
    Its methods may be called by any thread. A forked child makes its own (`EngineClosedError`).
    Nothing is encrypted; who connects proves that it holds the token.

    Args:
        listen: "host:port" for peers, port 0 for any free one. Loopback unless you say otherwise.
        token: 16 to 64 bytes that both ends must hold; None: this user's on this machine
            (`inlay.transfer.runtime_dir.shared_token`).
        transports: names of those that may move bytes: "local" within this process, "shm" to
            processes of this host, "file", "cuda" (device memory), "tcp", "fabric" (which counts
            libfabric's tcp provider only when it is named), and those of other packages
            (`inlay.transfer.plugins`). None: all that work here; each pair of memories takes the
            fastest that reaches both. Peers are always found over tcp.
        config: see `TransferConfig`.
        name: under which peers find this engine in the directory, as long as it lives.
        directory: where names are published and looked up: "etcd://host:2379",
            "redis://[:password@]host:6379[/db]" or "http://host:port/path". Entries are not
            secret; who connects proves itself to the engine.

    Raises:
        EndpointError: the directory does not answer, or refuses.
        AddressInUseError: the port is taken.
        ArgumentError: an address, token or transport that cannot be.
        TransportUnavailableError: the compiled extension is missing, or a named transport does not
            work here; says why.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        token: bytes | None = None,
        transports: Sequence[str] | None = None,
        config: TransferConfig | None = None,
        name: str | None = None,
        directory: str | None = None,
    ) -> None:
        config = config or TransferConfig()
        found_in = open_directory(directory) if directory else None
        self._native = _backend.Engine(
            listen,
            shared_token() if token is None else token,
            config.spin_us,
            list(transports or ()),
            _ledgers(),
            WEIGHTS[config.traffic_class],
            dict(config.nic_bandwidths),
            [(one.name, one.library, one.problem or "") for one in find_plugins(transports or ())],
        )
        try:
            self._names = Names(found_in, name, self.engine_id, self.address)
        except BaseException:
            self._native.close()
            raise
        # At exit, too: before the interpreter takes away what the segments keep.
        self._end = weakref.finalize(self, _close, self._native, self._names)
        # The last that is registered is called first: no thread comes back when engines close.
        atexit.unregister(_backend.leave_waiters)
        atexit.register(_backend.leave_waiters)

    @property
    def address(self) -> str:
        """Where it listens, with the port that was chosen."""
        return self._native.address

    @property
    def port(self) -> int:
        """The port of `address`."""
        return int(self.address.rpartition(":")[2])

    @property
    def transports(self) -> dict[str, str | None]:
        """Why each transport does not move this engine's bytes; None for those that do."""
        return {name: problem or None for name, problem in self._native.transports.items()}

    @property
    def engine_id(self) -> str:
        """32 hex digits, drawn anew for each engine."""
        return self._native.engine_id

    def allocate(
        self,
        size: int,
        *,
        name: str | None = None,
        remote: Access = Access.READ,
        page_bytes: int | None = None,
    ) -> Segment:
        """Make zeroed memory of `size` bytes and register it.

        Processes of this host map it, so they copy about 3 times faster than from memory that is
        registered. A forked child shares it with its parent.

        Args:
            size: at least 1.
            name: what peers ask for, unique in the engine, at most 255 bytes; None: one is made up.
            remote: what peers may do with it.
            page_bytes: None: who may write it, may write anywhere. Else each write needs a grant of
                all pages that it touches, which `Segment.grant` gives and `Segment.revoke` takes
                back for certain. Divides `size`; of `Access.WRITE` alone. Writes go over local, shm
                and tcp, at registered memory's rate, since this process lands the bytes itself.

        Raises:
            ResourceError: no memory, or 4096 segments are registered.
            ArgumentError: a size or name that cannot be.

        Cost: pages are faulted in here, about 0.2 s per GiB.
        """
        return self._native.allocate(size, name, remote, page_bytes)

    def register(
        self,
        buffer: Any,
        *,
        name: str | None = None,
        remote: Access = Access.READ,
        page_bytes: int | None = None,
    ) -> Segment:
        """Offer memory of this process to peers, and to transfers of this engine.

        Args:
            buffer: contiguous memory: an object with the buffer protocol (NumPy array, bytearray,
                mmap, memoryview), a tensor with DLPack (torch) in host memory or on a CUDA
                device, which are held until the segment is deregistered and must not be resized
                meanwhile; or a pair (address, length), of either kind of memory, which its owner
                must keep in place as long. Read-only memory can only be a source. Of device
                memory, synchronise the streams that use it before you submit a transfer.
            name: as in `allocate`.
            remote: as in `allocate`.
            page_bytes: as in `allocate`; not of device memory.

        Raises:
            SegmentOverlapError: registered memory lies there already.
            SegmentAccessError: `remote=Access.WRITE` for read-only memory.
            TransportUnavailableError: a device's memory, and CUDA does not work here; says why.
            ArgumentError: no such buffer, or a name that cannot be.

        Cost: 0.3 us, of a tensor 4; of an address 15 or more, as it is looked up in the list of
        this process's memory. No page is touched. The first device memory of a process starts CUDA,
        0.1 s and more; children that are forked later cannot use it.
        """
        return self._native.register(buffer, name, remote, page_bytes)

    def register_file(
        self,
        path: str | os.PathLike[str],
        size: int | None = None,
        *,
        name: str | None = None,
        remote: Access = Access.READ,
        preallocate: bool = True,
    ) -> Segment:
        """Register a file as a segment on disk, for transfers of this engine and of peers.

        In this process it is either side: `engine.write(memory[0:n], file[0:n])` fills the file,
        `engine.write(file[0:n], peer["kv"][0:n])` sends from it, through buffers. In others it is
        `peer["name"]`, which they read and write through this engine. It is no buffer.

        Args:
            path: a regular file; made with mode 0600 where there is none and a size is given.
            size: bytes, at least 1. A shorter file grows, a longer one keeps what is beyond. None:
                as long as the file is.
            name: as in `allocate`.
            remote: as in `allocate`; transfers of this engine may always read and write it.
            preallocate: reserve the disk's blocks now, so that no write meets a full disk. Else a
                grown file is sparse.

        The engine locks the file: no other engine can have it at the same time, unless both only
        read. Where its last process was killed, this waits until the disk has done what that
        process had under way: milliseconds, 60 s at most. What is written survives the process,
        but not a power cut: nothing is flushed. The file stays when the segment is deregistered.
        Who cuts it meanwhile makes reads fail.

        Raises:
            StorageFullError: no room for it.
            FileTransferError: it cannot be opened, locked or sized, or the disk did not end in
                those 60 s what a killed process had under way.
            SegmentOverlapError: another engine uses the file.
            TransportUnavailableError: `transports` leaves `file` out.
            SegmentAccessError: `remote=Access.WRITE`, or growth, of a read-only file.
            ArgumentError: no regular file, or a size or name that cannot be.

        Cost: a system call or ten, and a connection of the engine to itself for the first file.
        Bytes go past the page cache (O_DIRECT, io_uring) where system and file system allow it;
        page-aligned offsets and memory spare a copy.
        """
        return self._native.register_file(os.fspath(path), size, name, remote, preallocate)

    def connect(self, address: str, *, timeout_s: float = 5.0) -> Peer:
        """The engine that listens at `address`, or has it as its name in the directory.

        The living connection, if there is one. After a lost one, this makes a new connection, after
        which nothing that was sent on the old one can land any more.

        Raises:
            PeerUnreachableError: nobody answers within `timeout_s`.
            PeerRefusedError: it holds another token.
            ProtocolError, ProtocolVersionError: no engine, or one of another version.
            ArgumentError: an address that cannot be, or a name without a directory.
            PeerDiedError: another engine listens now where the one with this name did.
            EndpointError: the directory does not answer.
        """
        connect = self._native.connect
        if ":" in address:
            return connect(address, timeout_s)
        return self._names.connect(address, connect, lambda peer: peer.engine_id, timeout_s)

    def submit(
        self,
        transfers: Sequence[Transfer | Ranges],
        *,
        deadline_s: float | None = 30.0,
        notify: bytes | None = None,
        verify: bool = False,
        checksum: bool = False,
    ) -> Batch:
        """Start all of them; they may mix peers and directions.

        What is wrong with an argument raises here, and nothing is started; what fails later is the
        batch's.

        Args:
            transfers: what to move.
            deadline_s: from now; then the batch ends with `TransferTimeoutError`. None: never.
            notify: when all bytes of the batch are complete, and only then, each of its peers gets
                this as a message with `notification` set, until the deadline. The batch does not
                wait for it.
            verify: compare a CRC32C of each slice where it lands with that of what was sent; what
                came damaged is sent again, up to three times, then `ChecksumError`. Such bytes go
                only over transports that verify, today tcp.
            checksum: `Batch.checksum` tells the CRC32C of each transfer's bytes, which is computed
                while they pass: of what was read as it landed. Local host memory alone.

        Raises:
            SegmentRangeError, SegmentAccessError, SegmentClosedError: of the first such transfer.
            ArgumentError: no transfers, a deadline that cannot be, or a checksum of a file's or a
                device's memory.
        """
        return self._native.submit(transfers, deadline_s, notify, verify, checksum)

    def read(
        self,
        local: Segment | SegmentView,
        remote: RemoteSegment | RemoteView,
        *,
        deadline_s: float | None = 30.0,
        verify: bool = False,
    ) -> None:
        """Fill `local` from `remote`: submit one transfer and wait. Raises what both raise."""
        self._native.move(Op.READ, local, remote, deadline_s, verify)

    def write(
        self,
        local: Segment | SegmentView,
        remote: RemoteSegment | RemoteView,
        *,
        deadline_s: float | None = 30.0,
        verify: bool = False,
    ) -> None:
        """Copy `local` to `remote`: submit one transfer and wait. Raises what both raise."""
        self._native.move(Op.WRITE, local, remote, deadline_s, verify)

    def recv(self, *, timeout_s: float | None) -> Message:
        """The oldest message of those that peers sent; wait for one.

        Raises:
            WaitTimeoutError: none came within `timeout_s`; None waits without end.
            EngineClosedError: the engine was closed meanwhile.
        """
        return Message(*self._native.recv(timeout_s))

    async def messages(self) -> AsyncIterator[Message]:
        """All messages as they come, until the engine is closed: `async for`.

        Each message goes to one receiver, be it here or in `recv`.
        """
        while True:
            try:
                message = self.recv(timeout_s=0)
            except WaitTimeoutError:
                await wait_for_message(self._native)
            except EngineClosedError:
                return
            else:
                yield message

    def paths(self) -> list[PathInfo]:
        """Every path to every peer, with what was counted of it.

        A peer that was lost stays until it, or another one, is connected to. Raises
        `EngineClosedError` after `close`. `inlay.transfer.metrics` has the same for Prometheus.
        """
        return [PathInfo(**record) for record in _backend.paths(self._native)]

    def pause(self, path: PathInfo) -> None:
        """No further slices on that path until `resume`: an operator drains it.

        What it has goes on. Other paths take its slices; without any, transfers to the peer wait
        for one until their deadline. Holds for later connections of the same path, too.

        Raises:
            ArgumentError: the peer has no path of that transport and name any more.
        """
        _backend.hold(self._native, path.peer, path.transport, path.name, True)

    def resume(self, path: PathInfo) -> None:
        """The path takes slices again. Raises what `pause` raises."""
        _backend.hold(self._native, path.peer, path.transport, path.name, False)

    def port_counts(self) -> PortCounts:
        """What became of connections to `address`."""
        return PortCounts(**_backend.port_counts(self._native))

    def close(self) -> None:
        """Fail what runs with `EngineClosedError`, leave all peers, let go of all memory.

        Writes that were not answered may still land at their targets. Called at exit by itself.
        """
        self._end()

    def __enter__(self) -> "TransferEngine":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _ledgers() -> str:
    """Where processes agree on their shares of network cards; empty where no place is safe."""
    try:
        return str(runtime_dir())
    except (ConfigError, OSError):
        return ""


def _close(native: _backend.Engine, names: Names) -> None:
    if native.made_here:
        names.close()
        native.close()
