"""What a holder of a version offers to all others, as segments that they read.

`weights/NAME/VERSION/manifest` says what it consists of, `.../layout` where its bytes lie in which
of the holder's segments, `.../have` has a byte for each piece (`choice.NOTHING`, `ASKED`, `HERE`),
so nobody has to be asked: others read it. A publisher has `weights/NAME/head` besides, which names
its versions and who else holds them.
"""

import contextlib
import hashlib
import threading
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from inlay.core.errors import SegmentNotFoundError, TransferError, WeightsError
from inlay.transfer import Peer, RemoteSegment, Segment, TransferEngine, crc32c
from inlay.weights.choice import HERE
from inlay.weights.manifest import Manifest

HEAD_BYTES = 64 << 10
_FIRST_BYTES = 2 << 10  # of a head, which is seldom longer
_TRIES = 50
CONNECT_S = 5.0


class Stretch(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring bytes of the flat space in one data segment.

    Attributes:
        start, size: in the flat space.
        segment: the number of the data segment.
        offset: where they begin in it.
    """

    start: int
    size: int
    segment: int
    offset: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Where a holder's bytes lie.

    Attributes:
        manifest: `identity` of its manifest; who has another one means other pieces.
        segments: names of its data segments.
        stretches: by `start`.
        in_memory: the data segments are memory, no files.
    """

    manifest: bytes
    segments: tuple[str, ...]
    stretches: tuple[Stretch, ...]
    in_memory: bool = False


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a publisher has now.

    Attributes:
        versions: that it offers, the newest first.
        holders: (address, version) of peers that said they hold or pull it.
    """

    versions: tuple[str, ...]
    holders: tuple[tuple[str, str], ...]


def segment_name(name: str, version: str, what: str) -> str:
    """Of what a holder offers of a version."""
    return f"weights/{name}/{version}/{what}"


def head_name(name: str) -> str:
    """Of a publisher's head."""
    return f"weights/{name}/head"


def identity(manifest: bytes) -> bytes:
    """16 bytes that are equal for equal manifests alone."""
    return hashlib.blake2b(manifest, digest_size=16).digest()


class Offer:
    """The segments of one version; they go with `close`.

    Args:
        data: registered, and offered for reading; their owner deregisters them after `close`.
        in_memory: `data` are memory, no files.
        first: what `have_P` has at first.

    Attributes:
        have_P: what others read of each piece; its owner writes it.
    """

    def __init__(
        self,
        engine: TransferEngine,
        manifest: Manifest,
        data: Sequence[Segment],
        stretches: Sequence[Stretch],
        *,
        in_memory: bool,
        first: int = HERE,
    ) -> None:
        self.manifest = manifest
        self._segments: list[Segment] = []
        encoded = manifest.to_bytes()
        layout = Layout(
            manifest=identity(encoded),
            segments=tuple(segment.name for segment in data),
            stretches=tuple(stretches),
            in_memory=in_memory,
        )
        try:
            for what, content in (
                ("manifest", encoded),
                ("layout", msgspec.msgpack.encode(layout)),
                ("have", bytes([first]) * max(1, manifest.num_pieces)),
            ):
                name = segment_name(manifest.name, manifest.version, what)
                segment = engine.allocate(len(content), name=name)
                self._segments.append(segment)
                np.frombuffer(memoryview(segment), np.uint8)[:] = np.frombuffer(content, np.uint8)
        except BaseException:
            self.close()
            raise
        self.have_P: npt.NDArray[np.uint8] = np.frombuffer(memoryview(self._segments[-1]), np.uint8)

    def close(self) -> None:
        """Others can read nothing of it any more."""
        deregister(self._segments)
        self._segments.clear()


class HeadSegment:
    """A publisher's head, written while others read it: a checksum tells them who read too soon."""

    def __init__(self, engine: TransferEngine, name: str) -> None:
        self._segment = engine.allocate(HEAD_BYTES, name=head_name(name))
        self._bytes = np.frombuffer(memoryview(self._segment), np.uint8)
        self._lock = threading.Lock()
        self.write(Head(versions=(), holders=()))

    def write(self, head: Head) -> None:
        """Replace what is there; of too many holders the last ones."""
        holders = head.holders
        while True:
            body = msgspec.msgpack.encode(msgspec.structs.replace(head, holders=holders))
            if len(body) <= HEAD_BYTES - 8:
                break
            holders = holders[len(holders) // 4 + 1 :]
        content = len(body).to_bytes(4, "little") + crc32c(body).to_bytes(4, "little") + body
        with self._lock:
            self._bytes[: len(content)] = np.frombuffer(content, np.uint8)

    def close(self) -> None:
        """Nobody finds the publisher's versions any more."""
        deregister([self._segment])


def deregister(segments: Sequence[Segment]) -> None:
    """Let go of segments, whoever reads them."""
    for segment in segments:
        with contextlib.suppress(TransferError, TimeoutError):
            segment.deregister(cancel=True, timeout_s=1.0)


def read_head(engine: TransferEngine, peer: Peer, name: str) -> Head:
    """What a publisher has now.

    Raises:
        WeightsError: it publishes nothing of this name.
        TransferError: it cannot be read.
    """
    try:
        remote = peer[head_name(name)]
    except SegmentNotFoundError:
        raise WeightsError(f"{peer.address} publishes no checkpoint named {name!r}") from None
    with engine.allocate(HEAD_BYTES) as local:
        content = memoryview(local)
        for _ in range(_TRIES):
            engine.read(local[0:_FIRST_BYTES], remote[0:_FIRST_BYTES])
            size, crc = (int.from_bytes(content[at : at + 4], "little") for at in (0, 4))
            end = 8 + size
            if _FIRST_BYTES < end <= HEAD_BYTES:
                engine.read(local[_FIRST_BYTES:end], remote[_FIRST_BYTES:end])
            if end <= HEAD_BYTES and crc32c(content[8:end]) == crc:
                return msgspec.msgpack.decode(bytes(content[8:end]), type=Head)
    raise WeightsError(f"the head of {name!r} at {peer.address} is damaged")


def newest(engine: TransferEngine, publishers: Sequence[str], name: str) -> str | None:
    """The newest version that all publishers have; None: there is none.

    Raises:
        WeightsError: one of them publishes nothing of this name.
        TransferError: one cannot be reached.
    """
    heads = [
        read_head(engine, engine.connect(address, timeout_s=CONNECT_S), name)
        for address in publishers
    ]
    common = set(heads[0].versions).intersection(*(head.versions for head in heads[1:]))
    return next((version for version in heads[0].versions if version in common), None)


def read_segment(engine: TransferEngine, remote: RemoteSegment) -> bytes:
    """All of a small segment."""
    with engine.allocate(remote.size) as local:
        engine.read(local[0 : remote.size], remote[0 : remote.size])
        return bytes(memoryview(local))


def read_offer(
    engine: TransferEngine, peer: Peer, name: str, version: str
) -> tuple[Manifest, Layout]:
    """What a holder has of a version.

    Raises:
        WeightsError: it has nothing of it.
        WeightsMismatchError: what it says contradicts itself.
        TransferError: it cannot be read.
    """
    try:
        manifest = peer[segment_name(name, version, "manifest")]
        layout = peer[segment_name(name, version, "layout")]
    except SegmentNotFoundError:
        raise WeightsError(f"{peer.address} does not hold {name} {version}") from None
    return (
        Manifest.from_bytes(read_segment(engine, manifest), peer.address),
        msgspec.msgpack.decode(read_segment(engine, layout), type=Layout),
    )
