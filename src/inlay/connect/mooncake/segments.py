"""Memory that a store contributes after its `setup`, segment by segment."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inlay.connect.mooncake.codes import Code, logger
from inlay.connect.mooncake.names import plain_name
from inlay.connect.mooncake.opening import CALL_S, JOIN_S, Opening
from inlay.core.errors import ArgumentError, InlayError
from inlay.store import Store

SEGMENT_STEP = 16 << 20  # sizes are whole numbers of it, as callers know them
_LOOK_S = 0.02


class Segments(Opening):
    """Each segment is a node of its own: its name, `host:port`, is its id and what is preferred."""

    def __init__(self) -> None:
        super().__init__()
        self._segments: dict[str, Store] = {}

    def allocate_and_mount_segment(
        self, size: int, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Contribute at least `size` bytes more.

        Args:
            size: rounded up to 16 MiB.
            protocol, location: taken: paths are chosen by topology.

        Returns:
            "ret" (0, or a negative code), "segment_ids" and "allocated_size" in bytes.
        """
        rounded = -(-size // SEGMENT_STEP) * SEGMENT_STEP
        try:
            if size <= 0:
                raise ArgumentError(f"a segment has at least 1 byte, got {size}")
            member = replace(self.member, memory_bytes=rounded, port=None, disk=None)
            store, name = member.join(JOIN_S, CALL_S)
        except InlayError as error:
            logger.warning("allocate_and_mount_segment: %s", error)
            return {"ret": int(Code.INTERNAL_ERROR), "segment_ids": [], "allocated_size": 0}
        with self._lock:
            self._segments[name] = store
        return {"ret": int(Code.OK), "segment_ids": [name], "allocated_size": rounded}

    def unmount_and_free_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = 0
    ) -> int:
        """Take segments away; 0, or -1 where one is none of this store's, and nothing is done.

        Args:
            segment_ids: what mounting returned.
            grace_period_seconds: how long, at most, objects are moved elsewhere before. Those with
                no other replica that are left are lost, all of them without a grace period.
        """
        with self._lock:
            if unknown := [one for one in segment_ids if one not in self._segments]:
                logger.warning("unmount_and_free_segment: %r is no segment of this store", unknown)
                return int(Code.INTERNAL_ERROR)
            stores = {one: self._segments.pop(one) for one in segment_ids}
        self._empty(list(stores), time.monotonic() + grace_period_seconds)
        for store in stores.values():
            store.close()
        return int(Code.OK)

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """0: a disk goes with its store at `close`, and keeps what it has for the next one."""
        return int(Code.OK)

    def close(self) -> int:
        """Leave the store with all segments; 0, also where there is none."""
        with self._lock:
            stores, self._segments = list(self._segments.values()), {}
        for store in stores:
            store.close()
        return super().close()

    def _empty(self, names: Sequence[str], end: float) -> None:
        try:
            for name in names:
                while time.monotonic() < end:
                    if self.administration().drain(plain_name(name)).done:
                        break
                    time.sleep(_LOOK_S)
        except InlayError as error:
            logger.warning("unmount_and_free_segment: nothing more is moved: %s", error)
