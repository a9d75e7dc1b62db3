"""The beginning and the end of a store, and memory that is registered with it."""

import inspect
import threading
import urllib.request
from collections.abc import Sequence
from typing import Any

from inlay.connect.mooncake.codes import Code, check_equal, coded, logger, told
from inlay.connect.mooncake.config import parse_size
from inlay.connect.mooncake.host_memory import (
    AddressMap,
    MooncakeHostMemAllocator,
    host_view,
)
from inlay.connect.mooncake.membership import Membership, membership
from inlay.core.errors import (
    ArgumentError,
    ConfigError,
    InlayError,
    SegmentOverlapError,
    StoreClosed,
    StoreUnavailable,
)
from inlay.store import Store
from inlay.store.administration import Administration
from inlay.transfer.runtime_dir import shared_token

JOIN_S = 5.0  # for the master to answer
CALL_S = 30.0  # of calls that do not know how much they move
QUESTION_S = 5.0  # of those that move nothing: a new master answers in that time
ASK_S = 2.0
_SLOWEST = 100e6  # bytes per second
NOT_SET_UP, MASTER_UNREACHABLE = 1, 2


class Opening:
    """What `setup` opens and `close` ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: Store | None = None
        self._name = ""
        self._prefix = ""
        self._member: Membership | None = None
        self._administration: Administration | None = None
        self._registered = AddressMap()
        self.own_memory = MooncakeHostMemAllocator()  # lent to callers
        self._pool_left = 0

    @property
    def opened(self) -> Store:
        """Inlay's store. Raises `StoreClosed` before `setup` and after `close`."""
        store = self._store
        if store is None:
            raise StoreClosed("the store is not set up: call setup() first")
        return store

    def named(self, key: str) -> str:
        """The key in the store of what callers call `key`. An empty one stays so: it is refused."""
        return self._prefix + key if self._prefix and key else key

    def named_each(self, keys: Sequence[str]) -> Sequence[str]:
        """`named` of many."""
        return [self.named(key) for key in keys] if self._prefix else keys

    @property
    def member(self) -> Membership:
        """With what the store was joined. Raises `StoreClosed` as `opened` does."""
        _ = self.opened
        assert self._member is not None
        return self._member

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Join a store; 0, or a negative code.

        Arguments are those of `_set_up`, by position or name, or one dict of them in which sizes
        may be texts such as "16MB". Once set up, further calls change nothing. Raises TypeError for
        arguments that there are none of.
        """
        if len(args) == 1 and not kwargs and isinstance(args[0], dict):
            return self._set_up_by_dict(dict(args[0]))
        return self._set_up(*args, **kwargs)

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 1 << 24) -> int:
        """The oldest form of `setup`: a master on this host at its usual port."""
        return self._set_up(
            "localhost", "P2PHANDSHAKE", mount_segment_size, 0, protocol, device_name,
            "127.0.0.1:50051",
        )  # fmt: skip

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Join the store of a `mooncake_client` on this host, and contribute nothing.

        Args:
            mem_pool_size: bytes that `alloc_from_mem_pool` may give.
            local_buffer_size: taken, and not needed.
            server_address: HOST:PORT of the client, which says where its master is.
        """
        try:
            self._pool_left = mem_pool_size
            self._join(
                Membership(
                    hostname="localhost",
                    port=None,
                    master=_master_of(server_address),
                    memory_bytes=0,
                    disk=None,
                )
            )
        except InlayError as error:
            logger.warning("setup_dummy: %s", error)
            return int(Code.INTERNAL_ERROR)
        return int(Code.OK)

    def alloc_from_mem_pool(self, size: int) -> int:
        """The address of memory for buffers; 0 without `setup_dummy`, or beyond its size."""
        with self._lock:
            if not 0 < size <= self._pool_left:
                return 0
            self._pool_left -= size
        return self.own_memory.alloc(size)

    def close(self) -> int:
        """Leave the store; 0, also where there is none."""
        with self._lock:
            store, self._store = self._store, None
            administration, self._administration = self._administration, None
        if administration is not None:
            administration.close()
        if store is not None:
            store.close()
        return int(Code.OK)

    def health_check(self) -> int:
        """0: the master answers; 1: not set up; 2: it does not answer within 2 s."""
        if self._store is None:
            return NOT_SET_UP
        try:
            self.administration().survey()
        except InlayError as error:
            logger.warning("health_check: %s", error)
            return MASTER_UNREACHABLE
        return int(Code.OK)

    def get_hostname(self) -> str:
        """`hostname:port`, by which others prefer this store's segment; "" before `setup`."""
        return self._name

    @coded
    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Say that memory will be used: calls then need not look it up. A range is taken once.

        It has to stay in place until it is unregistered, or the store is closed.
        """
        view = host_view(buffer_ptr, size)  # None: a device's
        with self._lock:
            try:
                self._registered.add(buffer_ptr, size, view)
            except SegmentOverlapError as error:
                raise ArgumentError(str(error)) from None
        return int(Code.OK)

    @coded
    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Undo `register_buffer`."""
        with self._lock:
            self._registered.remove(buffer_ptr)
        return int(Code.OK)

    def buffer_at(self, address: int, size: int) -> Any:
        """What the store takes for these bytes: a part of a registered buffer, else the address.

        The store looks up an address, and refuses those that are no memory.

        Raises:
            ArgumentError: less than 0 bytes.
        """
        if size < 0:
            raise ArgumentError(f"no memory: {size} bytes at {address:#x}")
        found = self._registered.find(address, size)
        if found is None or found[1] is None:
            return address, size
        start, view = found
        return view[address - start : address - start + size]

    def buffers_at(
        self, all_buffer_ptrs: Sequence[Sequence[int]], all_sizes: Sequence[Sequence[int]]
    ) -> list[list[Any]]:
        """`buffer_at` of each buffer of each key.

        Raises:
            ArgumentError: no memory, or lists of different lengths.
        """
        check_equal(buffer_ptrs=len(all_buffer_ptrs), sizes=len(all_sizes))
        found = []
        for pointers, sizes in zip(all_buffer_ptrs, all_sizes, strict=True):
            check_equal(buffer_ptrs=len(pointers), sizes=len(sizes))
            found.append([self.buffer_at(*one) for one in zip(pointers, sizes, strict=True)])
        return found

    def administration(self) -> Administration:
        """Questions to the master; opened at first use."""
        master = self.member.master
        with self._lock:
            if self._administration is None:
                self._administration = Administration(master, shared_token(), timeout_s=ASK_S)
            return self._administration

    def _set_up(
        self,
        local_hostname: str,
        metadata_server: str,
        global_segment_size: int = 1 << 24,
        local_buffer_size: int = 1 << 24,
        protocol: str = "tcp",
        rdma_devices: str = "",
        master_server_addr: str = "127.0.0.1:50051",
        engine: object = None,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
        ipc_socket_path: str = "",
    ) -> int:
        """Devices, engine, buffers and ports are taken: Inlay needs none of them."""
        try:
            found = membership(
                local_hostname,
                metadata_server,
                global_segment_size,
                protocol,
                master_server_addr,
                ssd_offload_path if enable_ssd_offload else "",
                tenant_id,
            )
            self._join(found)
        except (InlayError, OSError) as error:
            logger.warning("setup: %s", error)
            return int(Code.INTERNAL_ERROR)
        return int(Code.OK)

    def _set_up_by_dict(self, given: dict[str, Any]) -> int:
        try:
            for name in ("local_hostname", "metadata_server"):
                if name not in given:
                    raise ConfigError(f"the configuration lacks {name!r}")
            for name in ("global_segment_size", "local_buffer_size"):
                if name in given:
                    given[name] = parse_size(given[name])
        except ConfigError as error:
            return told(error, "setup")
        unknown = [name for name in given if name not in _SETUP_NAMES]
        if unknown:
            logger.warning("setup: without effect here: %s", ", ".join(map(str, unknown)))
        return self._set_up(**{name: given[name] for name in given if name in _SETUP_NAMES})

    def _join(self, member: Membership) -> None:
        if self._store is not None:
            return
        store, name = member.join(JOIN_S, CALL_S)
        with self._lock:
            mine = self._store is None
            if mine:
                self._store, self._name, self._member = store, name, member
                self._prefix = member.key_prefix
        if not mine:  # another thread was first
            store.close()


def time_for(size_bytes: int) -> float:
    """Seconds that a call with so many bytes may take."""
    return QUESTION_S + size_bytes / _SLOWEST


_SETUP_NAMES = frozenset(inspect.signature(Opening._set_up).parameters) - {"self"}


def _master_of(server_address: str) -> str:
    """Ask a `mooncake_client` where its master is. Raises `StoreUnavailable`."""
    url = f"http://{server_address}/master"
    try:
        with urllib.request.urlopen(url, timeout=ASK_S) as answer:
            return str(answer.read(1024).decode())
    except (OSError, ValueError) as error:
        raise StoreUnavailable(
            f"no mooncake_client answers at {server_address} ({error}): start "
            "python -m inlay.connect.mooncake.client"
        ) from None
