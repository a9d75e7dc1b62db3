"""Calls that ask about objects and remove them."""

import re
from collections.abc import Iterator, Sequence

from inlay.connect.mooncake.codes import Code, coded, coded_each, logger, told
from inlay.connect.mooncake.membership import TENANT_MARK
from inlay.connect.mooncake.names import segment_of
from inlay.connect.mooncake.opening import QUESTION_S, Opening
from inlay.connect.mooncake.replicas import ReplicaDescriptor
from inlay.core.errors import ArgumentError, InlayError

KEYS_AT_A_TIME = 4096
# What became of a removal, as the compiled client numbers it.
_REMOVAL_CODES = (Code.OK, Code.OBJECT_NOT_FOUND, Code.OBJECT_HAS_LEASE, Code.OBJECT_NOT_FOUND)

TaskId = tuple[int, int]


class Asking(Opening):
    """Questions and removals."""

    def is_exist(self, key: str) -> int:
        """1, 0, or a negative code."""
        return self.batch_is_exist([key])[0]

    @coded_each
    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        """`is_exist` of many, with one question. A key that cannot be is not there."""
        store = self.opened
        able = [key for key in keys if key]
        there = (
            dict(
                zip(
                    able,
                    store.exists_many(self.named_each(able), timeout_s=QUESTION_S),
                    strict=True,
                )
            )
            if able
            else {}
        )
        return [int(there.get(key, False)) for key in keys]

    @coded
    def get_size(self, key: str) -> int:
        """Bytes of the value."""
        return self.opened.stat(self.named(key), timeout_s=QUESTION_S).size_bytes

    @coded
    def remove(self, key: str, force: bool = False) -> int:
        """Remove an object; -706 while it is leased by a reader, unless forced."""
        return self.batch_remove([key], force)[0]

    @coded_each
    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """`remove` of many, with one question."""
        store = self.opened
        outcomes = store.client.remove(self.named_each(keys), force, QUESTION_S)
        return [int(_REMOVAL_CODES[outcome]) for outcome in outcomes]

    @coded
    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove what matches somewhere in its key; how many there were. Asks for all keys."""
        try:
            pattern = re.compile(regex_pattern)
        except re.error as error:
            raise ArgumentError(f"{regex_pattern!r} is no pattern: {error}") from None
        found = [key for key in self._keys() if pattern.search(key)]
        return sum(not code for code in self.batch_remove(found, force)) if found else 0

    @coded
    def remove_all(self, force: bool = False) -> int:
        """Remove all objects of the tenant, those of others, too; how many. Asks for all keys."""
        found = list(self._keys())
        return sum(not code for code in self.batch_remove(found, force)) if found else 0

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Its replicas; none where it is not there."""
        try:
            found = self.opened.stat(self.named(key), timeout_s=QUESTION_S)
        except InlayError as error:
            told(error, "get_replica_desc")
            return []
        return [
            ReplicaDescriptor(segment_of(node), tier, found.size_bytes)
            for node, tier in found.replicas
        ]

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Of those that are there, their replicas. A question for each key."""
        found = {key: self.get_replica_desc(key) for key in keys}
        return {key: replicas for key, replicas in found.items() if replicas}

    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Remove objects whose replicas are all on this segment ("": any); the keys removed."""
        cleared = []
        for key in keys:
            nodes = {replica.node for replica in self.get_replica_desc(key)}
            if nodes and (not segment_name or nodes == {segment_name}):
                if self.remove(key) == Code.OK:
                    cleared.append(key)
        return cleared

    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[TaskId, int]:
        """Not there: -704 for a key that is not there, else -600.

        `ReplicateConfig.replica_num` says how many replicas an object has; the store makes lost
        ones again by itself.
        """
        return self._no_task(key, "put it with replica_num: the store keeps so many by itself")

    def create_move_task(self, key: str, source: str, target: str) -> tuple[TaskId, int]:
        """Not there, as `create_copy_task`; `inlay store drain` moves all objects of a node."""
        return self._no_task(key, "inlay store drain moves all objects of a node elsewhere")

    def query_task(self, task_id: TaskId) -> tuple[None, int]:
        """No task is known."""
        return None, int(Code.TASK_NOT_FOUND)

    def get_offload_rpc_read_count(self) -> int:
        """Reads from disks of others: 0, as values come to memory first."""
        return 0

    def _no_task(self, key: str, instead: str) -> tuple[TaskId, int]:
        there = self.is_exist(key)
        if there == 1:
            logger.warning("copy and move tasks are not there: %s", instead)
        code = {0: int(Code.OBJECT_NOT_FOUND), 1: int(Code.INVALID_PARAMS)}.get(there, there)
        return (0, 0), code

    def _keys(self) -> Iterator[str]:
        """As callers name them: of the tenant alone."""
        administration, cursor, begun = self.administration(), 0, False
        prefix = self._prefix
        while cursor or not begun:
            keys, cursor = administration.keys(prefix, cursor, KEYS_AT_A_TIME)
            begun = True
            for key in keys:
                text = key.decode(errors="surrogateescape")
                if prefix or not text.startswith(TENANT_MARK):
                    yield text.removeprefix(prefix)
