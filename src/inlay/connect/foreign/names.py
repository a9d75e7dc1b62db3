"""Which of our blocks a foreign engine has, by what it says of its own.

An engine names its blocks by a hash of its own, and of a size of its own. Its events say which
tokens a block has and which block was before it, so each of its blocks is given our names here: a
block of ours is there while all of the engine's that it lies in are. It may lie in several: where
prompts differ within a block of the engine, the same block of ours is part of one of each.

What cannot be named is not counted: blocks whose parent was never heard of, and those that depend
on more than tokens, salt and adapter (images).
"""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from inlay.connect.foreign.kv_events import (
    AllBlocksCleared,
    BlockName,
    BlockRemoved,
    BlockStored,
    Event,
)
from inlay.core.block_hash import ROOT, chain
from inlay.core.instance_messages import KvChange

_OWN_MEDIA = ("GPU", "CPU", "CPU_PINNED", "DISK")  # others are shared by instances
_DEVICE = "GPU"
_LEAST_KEPT = 4096

NamespaceKey = Callable[[str, str], bytes | None]
"""Of a salt and an adapter's name, empty for none: what blocks are named by; None: nothing."""


@dataclass(slots=True, eq=False)
class _Block:
    """One of the engine's blocks.

    Attributes:
        key: of its namespace.
        parent: the block before it.
        size: tokens of it.
        digest: of the last block of ours that ends in it or before it.
        tail: its last tokens, which are behind that.
        places: those of our blocks that lie in it, wholly or in part.
        media: where it is.
    """

    key: bytes
    parent: "_Block | None"
    size: int
    digest: bytes
    tail: list[int]
    places: list["_Place"] = field(default_factory=list)
    media: set[str] = field(default_factory=set)


@dataclass(slots=True, eq=False)
class _Place:
    """Blocks of the engine that hold one of ours together.

    Attributes:
        name: of our block.
        blocks: the engine's, from the last to the first.
        lacking: how many of those are in no medium.
    """

    name: bytes
    blocks: list[_Block]
    lacking: int


class BlockNames:
    """All that is known of one engine's blocks.

    Args:
        key_of: gives the key of a namespace.
        block_tokens: of our blocks.

    Attributes:
        num_held: of our blocks, how many are there.
        unnamed: of its blocks, how many could not be named so far.
    """

    def __init__(self, key_of: NamespaceKey, block_tokens: int) -> None:
        self.num_held = self.unnamed = 0
        self._key_of = key_of
        self._block_tokens = block_tokens
        self._blocks: dict[BlockName, _Block] = {}
        self._gone: OrderedDict[BlockName, None] = OrderedDict()  # known, and nowhere; oldest first
        self._whole: dict[bytes, int] = {}  # of our blocks: how many of their places lack nothing
        self._changes: list[tuple[bool, bytes]] = []
        self._group: int | None = None

    def apply(self, events: Iterable[Event]) -> None:
        """Take note of events, in order. Cost: about 10 us for each of the engine's blocks."""
        for event in events:
            match event:
                case BlockStored():
                    self._stored(event)
                case BlockRemoved():
                    self._removed(event)
                case AllBlocksCleared():
                    self.lost(forget=True)

    def lost(self, *, forget: bool) -> None:
        """Nothing is known to be there any more.

        Args:
            forget: the engine's hashes mean nothing any more, either: it was started again.
        """
        self._changes += [(False, name) for name in self.digests()]
        if forget:
            self._blocks.clear()
            self._gone.clear()
            self._whole.clear()
            self._group = None
            self.num_held = 0
            return
        for name, block in self._blocks.items():
            if block.media:
                self._leave(name, block, quietly=True)
        self._bound()

    def digests(self) -> list[bytes]:
        """Names of the blocks that are there, parents before their children."""
        return [name for name, places in self._whole.items() if places]

    def match(self, names: Iterable[bytes]) -> int:
        """How many leading blocks of these are there."""
        return sum(1 for _ in itertools.takewhile(self._whole.get, names))

    def take_changes(self) -> tuple[KvChange, ...]:
        """What became of our blocks since the last call."""
        changes, self._changes = self._changes, []
        return tuple(
            KvChange(stored, b"".join(name for _, name in run))
            for stored, run in itertools.groupby(changes, lambda change: change[0])
        )

    def _stored(self, event: BlockStored) -> None:
        medium = event.medium or _DEVICE
        if (
            event.locality == "REMOTE"
            or medium not in _OWN_MEDIA
            or event.kv_cache_spec_sliding_window  # what is before the window may be gone
            or not self._is_group(event.group_idx, take=True)
        ):
            return
        parent: _Block | None = None
        if event.parent_block_hash is not None:
            parent = self._blocks.get(event.parent_block_hash)
            if parent is None:
                self.unnamed += len(event.block_hashes)
                return
        size = event.block_size
        for index, name in enumerate(event.block_hashes):
            block = self._blocks.get(name)
            if block is None:
                key = self._key(event, index, parent)
                if key is None:
                    self.unnamed += len(event.block_hashes) - index
                    return
                tokens = event.token_ids[index * size : (index + 1) * size]
                block = self._learn(name, key, parent, tokens)
            if not block.media:
                self._enter(name, block)
            block.media.add(medium)
            parent = block

    def _removed(self, event: BlockRemoved) -> None:
        if event.locality == "REMOTE" or not self._is_group(event.group_idx, take=False):
            return
        for name in event.block_hashes:
            block = self._blocks.get(name)
            if block is not None and block.media:
                block.media.discard(event.medium or _DEVICE)
                if not block.media:
                    self._leave(name, block)
        self._bound()

    def _is_group(self, group: int | None, *, take: bool) -> bool:
        """Whether events are of the attention by which we go: the first whose blocks are stored."""
        if group is None:
            return True
        if self._group is None and take:
            self._group = group
        return group == self._group

    def _key(self, event: BlockStored, index: int, parent: _Block | None) -> bytes | None:
        """What names a block; None: it cannot be named."""
        extra = list((event.extra_keys[index] if event.extra_keys else None) or ())
        if event.lora_name is not None and extra[:1] == [event.lora_name]:
            del extra[0]
        elif event.lora_name is None and event.lora_id:
            return None  # older engines do not say which adapter it is
        if parent is not None:
            return None if extra else parent.key
        salt = event.cache_salt or ""
        if len(extra) == 1 and isinstance(extra[0], str):
            salt = extra.pop()
        return None if extra else self._key_of(salt, event.lora_name or "")

    def _learn(
        self, name: BlockName, key: bytes, parent: _Block | None, tokens: list[int]
    ) -> _Block:
        """A block that was not known; it is nowhere yet."""
        digest, tail = (ROOT, []) if parent is None else (parent.digest, parent.tail)
        behind = [*tail, *tokens]
        names = chain(key, behind, self._block_tokens, digest)
        left = len(behind) - len(names) * self._block_tokens
        block = _Block(
            key=key,
            parent=parent,
            size=len(tokens),
            digest=names[-1] if names else digest,
            tail=behind[len(behind) - left :],
        )
        self._blocks[name] = block
        self._gone[name] = None
        for number, ours in enumerate(names):
            self._whole.setdefault(ours, 0)
            place = _Place(ours, [block], 1)
            covered, before = (len(tail) if number == 0 else 0), parent
            while covered > 0 and before is not None:  # it began in blocks before
                place.blocks.append(before)
                place.lacking += not before.media
                covered, before = covered - before.size, before.parent
            for one in place.blocks:
                one.places.append(place)
        return block

    def _enter(self, name: BlockName, block: _Block) -> None:
        """A block is there."""
        self._gone.pop(name, None)
        for place in block.places:
            place.lacking -= 1
            if place.lacking:
                continue
            places = self._whole[place.name] = self._whole.get(place.name, 0) + 1
            if places == 1:
                self.num_held += 1
                self._changes.append((True, place.name))

    def _leave(self, name: BlockName, block: _Block, *, quietly: bool = False) -> None:
        """A block is nowhere any more."""
        block.media.clear()
        self._gone[name] = None
        for place in block.places:
            place.lacking += 1
            if place.lacking > 1:
                continue
            self._whole[place.name] -= 1
            if not self._whole[place.name]:
                self.num_held -= 1
                if not quietly:
                    self._changes.append((False, place.name))

    def _bound(self) -> None:
        """Forget what has been nowhere for longest, beyond as many as are there."""
        kept = max(_LEAST_KEPT, len(self._blocks) // 2)
        while len(self._gone) > kept:
            name, _ = self._gone.popitem(last=False)
            forgotten = self._blocks.pop(name)
            for place in forgotten.places:
                for block in place.blocks:
                    if block is not forgotten:
                        block.places.remove(place)
                if not self._whole.get(place.name):
                    self._whole.pop(place.name, None)
