"""Decode steps that are recorded once for a number of rows, and replayed.

A step of a few tokens is hundreds of short operations, and launching them one by one takes longer
than a GPU needs for them. A recording has all layers of a stage, the words and copies of the
hand-over to host experts with them: the host is told of a step by one call before it is replayed.
Embedding and output matrix stay outside.

Numbers of rows are rounded up to a size that has a recording; rows in excess do no harm and cost
little (see `StepInputs`), and the host does not see them.

Shapes: R wanted rows, V vocabulary, M model width.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from inlay.core.errors import InlayError
from inlay.core.units import format_bytes
from inlay.models.batch import ForwardBatch
from inlay.models.embedding import Embedding
from inlay.models.hand_over import HandOverLine
from inlay.models.host_share import HostShare
from inlay.models.host_step import HostStep
from inlay.models.kv_pool import KvPart, KvPool
from inlay.models.ops import Array, Ops, RopeTables, Step
from inlay.models.recorder import Recorder
from inlay.models.step_inputs import StepInputs

log = logging.getLogger(__name__)

SIZES = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128)
"""Rows of recordings. Few rows have their own: one in excess chooses experts that nobody else does,
and reading these is most of a small step."""

# Of the same rows, computed by the same kernels in the same order: far more than they differ by,
# which is nothing or the last bits of bfloat16, and far less than a fault makes.
_TOLERANCE = 0.01
_MOST_BYTES = 1 << 30


def size_for(rows: int) -> int | None:
    """Rows of the recording that takes so many; None: there is none."""
    return next((size for size in SIZES if size >= rows), None)


class Stage(Protocol):
    """Neighbouring layers on one device, as the decoder has them."""

    @property
    def ops(self) -> Ops:
        """Its backend."""
        ...

    def work(self, rows: int) -> Any:
        """New memory for activations, with `hidden_TM`."""
        ...

    def ropes(self, positions: int) -> Sequence[RopeTables]:
        """Cosines and sines of at least so many positions."""
        ...

    def run(self, step: Step, work: Any, host: HostStep | None) -> None:
        """All layers, on `work.hidden_TM` in place."""
        ...

    def logits(self, rows: int, hidden_TM: Array, step: Step) -> Tensor:
        """Of the wanted rows."""
        ...


class _Part:
    """What a stage has of a recording."""

    def __init__(
        self, stage: Stage, pool: KvPart, rows: int, pages: int, embedding: Embedding | None
    ) -> None:
        self._stage, self._embedding = stage, embedding
        hidden = 0 if embedding is None else embedding.columns
        pairs = [cos_SC.shape[1] for cos_SC, _ in stage.ropes(1)]
        device = pool.data.device
        with torch.inference_mode(mode=False):  # steps with and without that mode write there
            self._inputs = StepInputs(rows, pages, hidden, pairs, pool, device)
            self._work = stage.work(rows)
        self._arrived: Callable[[], None] = lambda: None
        self._step: Step = None
        self.replay: Callable[[], None] | None = None

    @property
    def hidden_TM(self) -> Array:
        """Hidden states: before the layers, then after them."""
        return self._work.hidden_TM

    def load(self, batch: ForwardBatch, before_TM: Array) -> None:
        """Bring what the step has that others had not. `before_TM`: of the stage before."""
        stage = self._stage
        self._arrived()
        ropes = stage.ropes(int(batch.positions_T.max()) + 1)
        self._step = self._inputs.load(batch, self._embedding, ropes)
        self._arrived = stage.ops.mark()
        stage.ops.take(self._inputs.embedded_TM if before_TM is None else before_TM, self.hidden_TM)

    def run(self, host: HostStep | None) -> None:
        """The layers, operation by operation."""
        self._stage.run(self._inputs.step, self._work, host)

    def leave(self) -> Array:
        """Hidden states for the stage that follows."""
        return self._stage.ops.leave(self.hidden_TM)

    def logits(self, rows: int) -> Tensor:
        """Of the wanted rows."""
        return self._stage.logits(rows, self.hidden_TM, self._step)


@dataclass(frozen=True)
class _Recording:
    parts: Sequence[_Part]
    line: HandOverLine | None  # its own, since a recording has addresses


class DecodeGraphs:
    """Recordings of a decoder's stages, made when a number of rows first comes.

    A recording is checked before it counts: it has to give what its operations give one by one.
    Where that fails, or recording does, steps run one operation at a time from then on, and the
    log says why.

    Args:
        embedding: the host's.
        context_tokens: of the longest request that is replayed.
        share: what the host has of the mixture layers.

    Cost: of a recording that is made, two steps one operation at a time, about; memory for what
        lies between operations, which all recordings of a stage share.

    Raises:
        InlayError: a stage's backend records nothing; the message says why.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        embedding: Embedding,
        context_tokens: int,
        share: HostShare | None,
    ) -> None:
        self._stages, self._embedding, self._share = stages, embedding, share
        self._context_tokens = context_tokens
        self._recorders: list[Recorder] = [stage.ops.recorder() for stage in stages]
        self._recordings: dict[int, _Recording] = {}
        self._made_for: tuple[KvPool | None, int] = (None, 0)
        self._nbytes = 0
        self._on = True

    def forward(self, batch: ForwardBatch, pool: KvPool) -> Tensor | None:
        """A step's logits `[R, V]`, float32; None: it is none for a recording, and nothing is done.

        Raises:
            Exception: as a step without recordings.
        """
        size = self._size(batch, pool)
        if size is None:
            return None
        made_for = (pool, 0 if self._share is None else self._share.version)
        if made_for != self._made_for:  # its addresses are not theirs any more
            self._recordings.clear()
            self._made_for, self._nbytes = made_for, 0
        recording = self._recordings.get(size)
        if recording is not None:
            return self._walk(recording, batch, _replay)
        if self._nbytes > _MOST_BYTES:
            return None
        try:
            return self._record(size, batch, pool)
        except Exception as error:
            self._turn_off(_first_of(error))
            return None

    def _size(self, batch: ForwardBatch, pool: KvPool) -> int | None:
        rows = len(batch.token_ids_T)
        if not self._on or len(batch.context_lens_B) != rows or batch.expert_ids_LTK is not None:
            return None
        if batch.adapters:
            return None
        if batch.decode_T is None or not batch.decode_T.all():
            return None  # layers may want other things of the host for a prompt
        if batch.context_lens_B.max() > self._pages(pool) * pool.format.page_tokens:
            return None
        return size_for(rows)

    def _pages(self, pool: KvPool) -> int:
        return min(pool.num_pages, -(-self._context_tokens // pool.format.page_tokens))

    def _record(self, size: int, batch: ForwardBatch, pool: KvPool) -> Tensor:
        began, free_bytes = time.perf_counter(), self._free_bytes()
        recording = self._new(size, pool)
        expected = self._walk(recording, batch, _run, trial=True)
        logits = self._walk(recording, batch, self._record_part)
        error = _difference(logits, expected)
        if not error <= _TOLERANCE:
            self._turn_off(f"of {size} rows it gives logits that are off by {error:.2g}")
            return expected
        self._recordings[size] = recording
        taken_bytes = max(0, free_bytes - self._free_bytes())
        self._nbytes += taken_bytes
        log.info(
            "decode steps of up to %d rows are replayed: recorded in %.2f s, with %s of memory",
            size,
            time.perf_counter() - began,
            format_bytes(taken_bytes),
        )
        return logits

    def _new(self, size: int, pool: KvPool) -> _Recording:
        line = None if self._share is None else self._share.new_line(size)
        pages, embedding = self._pages(pool), self._embedding
        parts = [
            _Part(stage, part, size, pages, embedding if stage is self._stages[0] else None)
            for stage, part in zip(self._stages, pool.parts, strict=True)
        ]
        return _Recording(parts, line)

    def _record_part(self, part: _Part, number: int, host: HostStep | None) -> None:
        part.replay = self._recorders[number].record(lambda: part.run(host))
        part.replay()

    def _walk(
        self,
        recording: _Recording,
        batch: ForwardBatch,
        go: Callable[[_Part, int, HostStep | None], None],
        *,
        trial: bool = False,
    ) -> Tensor:
        step: AbstractContextManager[HostStep | None] = nullcontext()
        if self._share is not None:
            step = self._share.step(batch, recording.line, trial=trial)
        with step as host:
            before_TM: Array = None
            for number, part in enumerate(recording.parts):
                part.load(batch, before_TM)
                go(part, number, host)
                before_TM = part.leave()
            return recording.parts[-1].logits(len(batch.logit_rows_R))

    def _free_bytes(self) -> int:
        return sum({stage.ops.device: stage.ops.free_bytes() for stage in self._stages}.values())

    def _turn_off(self, why: str) -> None:
        self._on = False
        self._recordings.clear()
        self._made_for = (None, 0)
        log.warning("decode steps are not replayed, which is slower: %s", why)


def _run(part: _Part, _number: int, host: HostStep | None) -> None:
    part.run(host)


def _replay(part: _Part, _number: int, _host: HostStep | None) -> None:
    assert part.replay is not None
    part.replay()


def _first_of(error: BaseException) -> str:
    """What went wrong first: ending a recording that is not valid fails once more."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) if isinstance(error, InlayError) else repr(error)


def _difference(found: Tensor, expected: Tensor) -> float:
    """Relative; not a number where one of them is none."""
    return float((found - expected).norm() / expected.norm().clamp_min(1e-20))
