"""What an engine and the other ranks of its model say to each other: messages through pipes.

A frame is the length of its MessagePack in four bytes, and that. An engine that waits for requests
sends nothing, so the other ranks sleep in `read`, and see at once when it is gone.
"""

import threading
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from inlay.core.messages import EngineFailure
from inlay.core.placement import Placement
from inlay.engine.config import EngineConfig
from inlay.models.batch import AdapterRows, ForwardBatch

if TYPE_CHECKING:
    from inlay.models.adapter_weights import AdapterWeights

# Exit status of a rank that ends because another one is gone.
RANK_LOST = 4
_LENGTH_BYTES = 4


class RankSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank reads first, one line of JSON.

    Attributes:
        directory: of the model.
        device: of this rank.
        placement: of the layers, on this rank's device; None: all on `device`.
        number, degree: which rank, of how many.
        port: where the ranks find each other.
        parent_pid: the engine's process, whose end is also the rank's.
    """

    config: EngineConfig
    directory: str
    device: str
    weight_format: str
    placement: Placement | None
    number: int
    degree: int
    port: int
    parent_pid: int


class PoolSetup(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The pages that each rank has a part of."""

    dtype: str
    page_tokens: int
    num_pages: int


class RankExchange(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Exchange KV with other instances, as the engine says through its transfer engine.

    Attributes:
        owner: address of that.
    """

    owner: str


class RankAdapter(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load a part of an adapter beside steps. Answered by `RankAdapterReady`.

    Attributes:
        number: by which steps name it, never used before.
    """

    number: int
    directory: str


class RankForget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """No step names this adapter any more; or no rank serves it, because one could not load it."""

    number: int


class RankLoad(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Load this rank's part of other weights, beside steps. Answered by `RankLoaded`.

    Attributes:
        weights: the number by which steps will name them.
        directory: where they are.
    """

    weights: int
    directory: str


class RankKeep(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Let go of all weights but these."""

    weights: tuple[int, ...]


class RankStep(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A `ForwardBatch`, its arrays as bytes.

    Attributes:
        weights: number of those that compute it.
        adapters: their numbers, and the rows first to end of each.
    """

    weights: int
    token_ids: bytearray
    positions: bytearray
    query_starts: bytearray
    context_lens: bytearray
    page_table: bytearray
    logit_rows: bytearray
    decodes: bytearray | None
    adapters: tuple[tuple[int, int, int], ...] = ()


class RankReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A rank has done what it was last told.

    Attributes:
        free_bytes: what it has for pages.
        address: of its transfer engine, once it exchanges KV.
    """

    free_bytes: int = 0
    address: str = ""


class RankAdapterReady(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A rank has its part of an adapter, or cannot have it.

    Attributes:
        fingerprint: of the adapter.
        code, message: of the error; empty: there is none.
    """

    fingerprint: str = ""
    code: str = ""
    message: str = ""


class RankLoaded(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """What became of a `RankLoad`.

    Attributes:
        made_bytes: see `Model.made_bytes`.
        error: what went wrong; the rank goes on with what it has.
    """

    made_bytes: int = 0
    error: EngineFailure | None = None


ToRank = PoolSetup | RankExchange | RankAdapter | RankForget | RankLoad | RankKeep | RankStep
FromRank = RankReady | RankAdapterReady | RankLoaded | EngineFailure


def step_of(batch: ForwardBatch, weights: int) -> RankStep:
    """What the other ranks need of a step that these weights compute."""

    def data(array: NDArray[Any]) -> bytearray:
        return bytearray(array.tobytes())

    return RankStep(
        weights=weights,
        token_ids=data(batch.token_ids_T),
        positions=data(batch.positions_T),
        query_starts=data(batch.query_starts_B1),
        context_lens=data(batch.context_lens_B),
        page_table=data(batch.page_table_BP),
        logit_rows=data(batch.logit_rows_R),
        decodes=None if batch.decode_T is None else data(batch.decode_T),
        adapters=tuple((of.adapter.number, of.first, of.end) for of in batch.adapters),
    )


def batch_of(step: RankStep, adapters: "Mapping[int, AdapterWeights]") -> ForwardBatch:
    """The batch that a step was made of, without room for the experts chosen.

    Args:
        adapters: this rank's parts, by number.
    """

    def numbers(data: bytearray) -> NDArray[np.int32]:
        return np.frombuffer(data, np.int32)

    context_lens_B = numbers(step.context_lens)
    return ForwardBatch(
        token_ids_T=numbers(step.token_ids),
        positions_T=numbers(step.positions),
        query_starts_B1=numbers(step.query_starts),
        context_lens_B=context_lens_B,
        page_table_BP=numbers(step.page_table).reshape(len(context_lens_B), -1),
        logit_rows_R=numbers(step.logit_rows),
        decode_T=None if step.decodes is None else np.frombuffer(step.decodes, np.bool_),
        adapters=[AdapterRows(adapters[n], first, end) for n, first, end in step.adapters],
    )


def write_frame(stream: IO[bytes], message: ToRank | FromRank) -> None:
    """Send a message.

    Raises:
        OSError: the other side is gone.
    """
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> bytes | None:
    """The next message; None: the other side is gone, or wants no more."""
    head = stream.read(_LENGTH_BYTES)
    if len(head) < _LENGTH_BYTES:
        return None
    length = int.from_bytes(head, "little")
    data = stream.read(length)
    return data if len(data) == length else None


class Answers:
    """The pipe to the engine, for several threads."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._lock = stream, threading.Lock()

    def write(self, message: FromRank) -> None:
        """Send one. Raises OSError if the engine is gone."""
        with self._lock:
            write_frame(self._stream, message)
