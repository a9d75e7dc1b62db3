"""Blocks fetched from the instance that computed them, from its cache into this one's.

Each worker offers its cache to others, read-only, and describes it in a small segment of its own.
The fetcher's last bytes tell the other one that it need not hold the blocks any more.

Source: who pulls and when it lets go follow vLLM's NIXL connector, so its proxies work unchanged.
"""

import logging
import threading
from typing import Any

import msgspec
import numpy as np

from inlay.connect.vllm.pages import KvPages
from inlay.connect.vllm.settings import ConnectorSettings
from inlay.connect.vllm.steps import BlockFetch
from inlay.core.errors import EngineClosedError, TransferError, WaitTimeoutError
from inlay.transfer import Op, Peer, Ranges, Segment, TransferEngine

log = logging.getLogger(__name__)

_LAYOUT = "vllm-layout"
_TAKEN = "vllm-taken"


class _Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker's cache lies in its segments.

    Attributes:
        dtype, shape, strides: of one block of one layer, which both ends must have alike.
        block_bytes: of one block of one layer.
        layers: by layer the segment, the offset of block 0 in it, and the bytes between blocks.
    """

    dtype: str
    shape: list[int]
    strides: list[int]
    block_bytes: int
    layers: list[tuple[str, int, int]]

    @property
    def alike(self) -> tuple[Any, ...]:
        return self.dtype, self.shape, self.strides, self.block_bytes, len(self.layers)


class PeerPages:
    """See the module.

    Args:
        settings: where it listens.
        pages: of this worker.

    Attributes:
        address: for others; None where blocks are not one range of memory each, so nothing is
            offered or fetched.
    """

    def __init__(self, settings: ConnectorSettings, pages: KvPages) -> None:
        self.address: str | None = None
        self._taken: set[str] = set()
        self._lock = threading.Lock()
        self._peers: dict[str, tuple[Peer, _Layout]] = {}
        if not pages.first.dense:
            log.warning("vLLM's cache has no block in one piece: no prompts go between instances")
            return
        self._engine = TransferEngine(settings.listen)
        self._segments: dict[str, Segment] = {}
        layers = [(self._register(layer), layer.offset, layer.stride)
                  for layer in pages.layers.values()]  # fmt: skip
        one = pages.first.blocks[0]
        self._layout = _Layout(
            dtype=str(one.dtype),
            shape=list(one.shape),
            strides=list(one.stride()),
            block_bytes=pages.first.block_bytes,
            layers=layers,
        )
        about = msgspec.msgpack.encode(self._layout)
        self._about = self._engine.allocate(8 + len(about), name=_LAYOUT)
        memoryview(self._about)[:] = len(about).to_bytes(8, "little") + about
        self.address = self._engine.address
        threading.Thread(target=self._listen, name="inlay-taken", daemon=True).start()

    def taken(self) -> set[str]:
        """Requests whose blocks others have fetched, since the last call."""
        with self._lock:
            taken, self._taken = self._taken, set()
        return taken

    def fetch(self, fetch: BlockFetch, rank: int) -> set[int]:
        """Fill blocks from another instance's; the blocks that are filled.

        Raises:
            TransferError: it is not reached, or its cache is of another layout.
        """
        if self.address is None:
            return set()
        peer, layout = self._peer(fetch.addresses[rank])
        ours, theirs = fetch.block_ids, fetch.remote_block_ids[: len(fetch.block_ids)]
        ours = ours[: len(theirs)]
        taken = fetch.remote_request_id.encode()
        if not ours:
            peer.send(_TAKEN, taken)
            return set()
        if layout.alike != self._layout.alike:
            peer.send(_TAKEN, taken)
            raise TransferError(
                f"its cache has blocks of {layout.dtype} {layout.shape} {layout.strides} in "
                f"{len(layout.layers)} layers, this one's {self._layout.dtype} "
                f"{self._layout.shape} {self._layout.strides} in {len(self._layout.layers)}"
            )
        here, there = np.asarray(ours, np.int64), np.asarray(theirs, np.int64)
        transfers = [
            Ranges(
                Op.READ,
                self._segments[mine],
                peer[its],
                offset + here * stride,
                its_offset + there * its_stride,
                layout.block_bytes,
            )
            for (mine, offset, stride), (its, its_offset, its_stride) in zip(
                self._layout.layers, layout.layers, strict=True
            )
        ]
        self._engine.submit(transfers, notify=taken).wait()
        return set(ours)

    def close(self) -> None:
        """Let go of the memory."""
        if self.address is not None:
            self._engine.close()

    def _register(self, layer: Any) -> str:
        """The segment of a layer's storage, which layers may share."""
        storage = layer.blocks.untyped_storage()
        name = f"vllm-kv-{storage.data_ptr():x}"
        if name not in self._segments:
            self._segments[name] = self._engine.register(
                (storage.data_ptr(), storage.nbytes()), name=name
            )
        return name

    def _peer(self, address: str) -> tuple[Peer, _Layout]:
        known = self._peers.get(address)
        if known is not None and known[0].alive:
            return known
        peer = self._engine.connect(address)
        remote = peer[_LAYOUT]
        with self._engine.allocate(remote.size) as local:
            self._engine.read(local, remote)
            raw = bytes(memoryview(local))
        size = int.from_bytes(raw[:8], "little")
        found = peer, msgspec.msgpack.decode(raw[8 : 8 + size], type=_Layout)
        self._peers[address] = found
        return found

    def _listen(self) -> None:
        while True:
            try:
                message = self._engine.recv(timeout_s=None)
            except WaitTimeoutError:
                continue
            except EngineClosedError:
                return
            if message.notification or message.topic == _TAKEN:
                with self._lock:
                    self._taken.add(message.body.decode("utf-8", "replace"))
