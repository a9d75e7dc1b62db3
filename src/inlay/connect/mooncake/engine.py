"""`TransferEngine`: transfers between addresses of processes."""

import enum
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from inlay.connect.mooncake.absent import AbsentEngineCalls
from inlay.connect.mooncake.addressed import transfer_of_one, transfers_of_many
from inlay.connect.mooncake.codes import logger
from inlay.connect.mooncake.config import transfer_timeout_s, transports
from inlay.connect.mooncake.engine_memory import EngineMemory
from inlay.connect.mooncake.membership import (
    check_metadata_server,
    check_protocol,
    listening_host,
)
from inlay.connect.mooncake.names import plain_name
from inlay.connect.mooncake.peers import Peers
from inlay.core.errors import (
    ArgumentError,
    EngineClosedError,
    InlayError,
    SegmentClosedError,
    SegmentNotFoundError,
    TransferTimeoutError,
    WaitTimeoutError,
)
from inlay.transfer import Batch, Op, Ranges, Transfer, read_topology
from inlay.transfer import TransferEngine as Engine

OK, FAILED = 0, -1
DONE, PENDING, TIMED_OUT = 1, 0, -2
PROBE_S = 2.0


class TransferOpcode(enum.Enum):
    """The direction, seen from the caller."""

    Read = 0
    Write = 1


Opcode = TransferOpcode  # the class has the name as an attribute


@dataclass(frozen=True)
class TransferNotify:
    """What the target is told when all bytes are there."""

    name: str = ""
    msg: str = ""


class TransferEngine(EngineMemory, AbsentEngineCalls):
    """An engine of Inlay that knows memory by address and peers by `host:port`.

    Calls return numbers and raise only TypeError; the reason of a failure is in the log. They may
    be made by any thread, and the GIL is free while bytes move. Peers hold the token of this user
    (`inlay.transfer.runtime_dir.shared_token`).
    """

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        super().__init__()
        self._peers: Peers | None = None
        self._timeout_s = 0.0
        self._batches: dict[int, Batch] = {}
        self._next_batch = 1
        self._batch_lock = threading.Lock()

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Listen at any free port of `local_hostname`, or at the one that it names; 0 or -1.

        Args:
            local_hostname: how peers reach this process; with a directory, the engine's name there.
            metadata_server: "P2PHANDSHAKE", or the URL of a directory.
            protocol: one of `inlay.connect.mooncake.membership.PROTOCOLS`; each pair of memories
                takes the fastest way that reaches both, whichever is named, or TCP where
                MC_FORCE_TCP is set.
            device_name: taken: paths are chosen by topology.
        """
        if self._engine is not None:
            return OK
        try:
            check_protocol(protocol)
            directory = check_metadata_server(metadata_server)
            hostname, _, port = local_hostname.rpartition(":")
            if not hostname or not port.isdigit():
                hostname, port = local_hostname, "0"
            listen = f"{listening_host(hostname)}:{port}"
            name = None if directory is None else plain_name(local_hostname)
            engine = Engine(listen, name=name, directory=directory, transports=transports())
        except InlayError as error:
            logger.warning("initialize: %s", error)
            return FAILED
        self._begin(engine)
        self._timeout_s = transfer_timeout_s()
        self._peers = Peers(engine, by_name=directory is not None)
        return OK

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
    ) -> int:
        """As `initialize`; the type of a metadata server without a scheme in its address."""
        if "://" not in metadata_server and metadata_type not in ("", "p2p", "P2PHANDSHAKE"):
            metadata_server = f"{metadata_type}://{metadata_server}"
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """Where it listens; 0 before `initialize`."""
        return 0 if self._engine is None else self._engine.port

    def get_engine(self) -> "TransferEngine":
        """For `MooncakeDistributedStore.setup(engine=)`, which does not need it."""
        return self

    def get_engine_ptr(self) -> int:
        """A number that stands for this engine."""
        return id(self)

    def get_first_buffer_address(self, segment_name: str) -> int:
        """The lowest address that a peer has registered; 0 where it has none, or is not there."""
        try:
            return self._found_peers().first_address(segment_name)
        except InlayError as error:
            logger.warning("get_first_buffer_address: %s", error)
            return 0

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Copy from an address here to one of the target's; 0 when it is there, or -1."""
        return self._move(target_hostname, [buffer], [peer_buffer_address], [length], Op.WRITE)

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Copy from an address of the target to one here; 0 or -1."""
        return self._move(target_hostname, [buffer], [peer_buffer_address], [length], Op.READ)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Either direction; then tell the target."""
        return self.batch_transfer_sync(
            target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify
        )

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """`transfer_sync_write` of many ranges in one batch: 0 when all are there, else -1."""
        return self._move(target_hostname, buffers, peer_buffer_addresses, lengths, Op.WRITE)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """`transfer_sync_read` of many ranges in one batch."""
        return self._move(target_hostname, buffers, peer_buffer_addresses, lengths, Op.READ)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Either direction; then tell the target."""
        told = None if notify is None else json.dumps([notify.name, notify.msg]).encode()
        op = Op(opcode.value)
        return self._move(target_hostname, buffers, peer_buffer_addresses, lengths, op, told)

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begin to write; the number of the batch, or 0 where it cannot begin."""
        return self._begin_batch(target_hostname, buffers, peer_buffer_addresses, lengths, Op.WRITE)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begin to read."""
        return self._begin_batch(target_hostname, buffers, peer_buffer_addresses, lengths, Op.READ)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: Opcode,
        transport_hint: str = "",
    ) -> int:
        """Begin, in either direction."""
        op = Op(opcode.value)
        return self._begin_batch(target_hostname, buffers, peer_buffer_addresses, lengths, op)

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Begin to write one range."""
        return self._begin_batch(
            target_hostname, [buffer], [peer_buffer_address], [length], Op.WRITE
        )

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Wait for all of them and forget them; 0 when all bytes are there, else -1."""
        results = [self._wait(batch_id) for batch_id in batch_ids]
        return OK if all(result == DONE for result in results) else FAILED

    def transfer_check_status(self, batch_id: int) -> int:
        """1 done, 0 under way, -1 failed or unknown, -2 out of time. All but 0 forget the batch."""
        with self._batch_lock:
            batch = self._batches.get(batch_id)
        if batch is not None and not batch.done:
            return PENDING
        return self._wait(batch_id)

    def get_notifies(self) -> list[TransferNotify]:
        """What initiators told since the last call."""
        found: list[TransferNotify] = []
        while self._engine is not None:
            try:
                message = self._engine.recv(timeout_s=0)
            except (WaitTimeoutError, EngineClosedError):
                break
            if message.notification:
                name, text = json.loads(message.body)
                found.append(TransferNotify(name, text))
        return found

    def send_probe(self, peer_server_name: str) -> int:
        """0 if the peer's engine answers, else -1."""
        try:
            self._found_peers().connect(peer_server_name, timeout_s=PROBE_S)
        except InlayError as error:
            logger.info("send_probe: %s", error)
            return FAILED
        return OK

    def get_local_topology(self, device_name: str | None = None) -> str:
        """JSON: for each memory the network ports near it and all others, as lists of names."""
        topology = read_topology()
        tiers = {
            location: [
                list(found[0]) if found else [],
                [name for tier in found[1:] for name in tier],
            ]
            for location, found in topology.tiers.items()
        }
        return json.dumps(tiers)

    def warmup_efa_segment(self, segment_name: str) -> int:
        """As `send_probe`: a connection that is there is found by the first transfer."""
        return self.send_probe(segment_name)

    def _found_peers(self) -> Peers:
        if self._peers is None:
            raise EngineClosedError("the engine is not initialized: call initialize() first")
        return self._peers

    def _move(
        self,
        target: str,
        buffers: Sequence[int],
        peer_addresses: Sequence[int],
        lengths: Sequence[int],
        op: Op,
        notify: bytes | None = None,
    ) -> int:
        if not len(buffers) and len(buffers) == len(peer_addresses) == len(lengths):
            return OK
        for may_retry in (True, False):
            try:
                self._submit(target, buffers, peer_addresses, lengths, op, notify).wait()
            except (SegmentClosedError, SegmentNotFoundError) as error:
                self._found_peers().forget(target)  # it has registered other memory by now
                if not may_retry:
                    logger.warning("a transfer with %s failed: %s", target, error)
            except InlayError as error:
                logger.warning("a transfer with %s failed: %s", target, error)
                return FAILED
            else:
                return OK
        return FAILED

    def _begin_batch(
        self,
        target: str,
        buffers: Sequence[int],
        peer_addresses: Sequence[int],
        lengths: Sequence[int],
        op: Op,
    ) -> int:
        try:
            batch = self._submit(target, buffers, peer_addresses, lengths, op, None)
        except InlayError as error:
            logger.warning("a transfer with %s does not begin: %s", target, error)
            return 0
        with self._batch_lock:
            number = self._next_batch
            self._next_batch += 1
            self._batches[number] = batch
        return number

    def _wait(self, batch_id: int) -> int:
        with self._batch_lock:
            batch = self._batches.pop(batch_id, None)
        if batch is None:
            logger.warning("there is no batch %d: each is asked about once", batch_id)
            return FAILED
        try:
            batch.wait()
        except TransferTimeoutError as error:
            logger.warning("batch %d: %s", batch_id, error)
            return TIMED_OUT
        except InlayError as error:
            logger.warning("batch %d: %s", batch_id, error)
            return FAILED
        return DONE

    def _submit(
        self,
        target: str,
        buffers: Sequence[int],
        peer_addresses: Sequence[int],
        lengths: Sequence[int],
        op: Op,
        notify: bytes | None,
    ) -> Batch:
        if not len(buffers) == len(peer_addresses) == len(lengths) or not len(lengths):
            raise ArgumentError(
                f"{len(buffers)} buffers, {len(peer_addresses)} addresses of the peer and "
                f"{len(lengths)} lengths: there must be as many of each, and one at least"
            )
        local, peers = self._local(), self._found_peers()
        transfers: list[Transfer] | list[Ranges]
        if len(lengths) == 1:
            transfers = [
                transfer_of_one(local, peers, target, op, buffers[0], peer_addresses[0], lengths[0])
            ]
        else:
            transfers = transfers_of_many(
                local, peers, target, op, buffers, peer_addresses, lengths
            )
        seconds = self._timeout_s + sum(lengths) * 1e-9
        return self._running().submit(transfers, deadline_s=seconds, notify=notify)
