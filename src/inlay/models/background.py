"""Weights that threads bring into memory while others work: in order, and on demand.

    loading = Loading(threads=8)
    loading.add(pieces, order=3)
    loading.require(some_of_them)   # these go ahead of all others
    loading.wait()

Knows pieces only as calls. One lock guards all states; a piece's own work runs outside it.
"""

import heapq
import itertools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inlay.core.errors import EngineError, ResourceError, WaitTimeoutError
from inlay.core.messages import LoadProgress


@dataclass(slots=True, eq=False)
class Piece:
    """What one thread brings in at a time.

    Attributes:
        nbytes: memory that it fills.
        bring: does it; False where it was left out because memory is short.
        queued: it is to come.
        taken: a thread has begun, or was asked to begin before all others.
        done: it is there.
    """

    nbytes: int
    bring: Callable[[], bool | None]
    queued: bool = False
    taken: bool = False
    done: bool = False


class Loading:
    """Threads that bring pieces in.

    The first error ends it: what has not come never will, and who waits for it gets the error.

    Args:
        threads: that work beside the caller's. They end with the last piece.
        on_change: called from these threads at most every second while pieces come, and at the end.

    Attributes:
        failure: why it ended early, or None.
    """

    def __init__(self, threads: int, on_change: Callable[[], None] | None = None) -> None:
        self.failure: Exception | None = None
        self.on_change = on_change
        self._num_threads = threads
        self._threads: list[threading.Thread] = []
        lock = threading.RLock()  # a model may be collected, and this closed, in the middle of it
        self._work_there, self._piece_done = threading.Condition(lock), threading.Condition(lock)
        self._urgent: deque[Piece] = deque()
        self._rest: list[tuple[int, int, Piece]] = []
        self._numbers = itertools.count()
        self._unfinished = self._giving_way = 0
        self._sealed = self._closed = False
        self._total = self._missing = self._brought = 0
        self._began = time.monotonic()
        self._ended: float | None = None
        self._told = self._began

    @property
    def progress(self) -> LoadProgress:
        """How far it is now."""
        with self._piece_done:
            ended = self._ended
            seconds = (time.monotonic() if ended is None else ended) - self._began
            return LoadProgress(
                loaded_bytes=self._total - self._missing,
                total_bytes=self._total,
                seconds=seconds,
                over=ended is not None,
            )

    @property
    def over(self) -> bool:
        """Whether nothing more will come."""
        return self._ended is not None

    @property
    def missing_bytes(self) -> int:
        """Memory of pieces that is still to be filled."""
        return self._missing

    @property
    def brought_bytes(self) -> int:
        """Memory of pieces that has been filled."""
        return self._brought

    def add(self, pieces: Iterable[Piece], order: int = 0) -> None:
        """Queue pieces behind those of a lower order."""
        with self._work_there:
            for piece in pieces:
                heapq.heappush(self._rest, (order, next(self._numbers), piece))
                self._queue(piece)
            self._start()
            self._work_there.notify_all()

    def require(self, pieces: Sequence[Piece]) -> None:
        """Wait for pieces, which go ahead of all that nobody waits for.

        Raises:
            Exception: the error of a piece, not necessarily of one of these.
            EngineError: closed meanwhile.
        """
        with self._piece_done:
            for piece in pieces:
                if not piece.taken:
                    self._queue(piece)
                    piece.taken = True
                    self._urgent.append(piece)
            self._start()
            self._work_there.notify_all()
            while not all(piece.done for piece in pieces):
                self._check()
                self._piece_done.wait()

    def gather(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of calls, made by these threads ahead of the queue. Raises as `require`."""
        results: list[Any] = [None] * len(calls)

        def call(number: int) -> None:
            results[number] = calls[number]()

        self.require([Piece(0, partial(call, number)) for number in range(len(calls))])
        return results

    @contextmanager
    def give_way(self) -> Iterator[None]:
        """Bring in only what is required inside this block. Each thread ends the piece that it has,
        so in a row of such blocks one for each thread comes with every block.
        """
        with self._work_there:
            self._giving_way += 1
        try:
            yield
        finally:
            with self._work_there:
                self._giving_way -= 1
                self._work_there.notify_all()

    def seal(self, total_bytes: int) -> None:
        """Say that no more pieces are added; all weights have so many bytes."""
        with self._work_there:
            self._sealed = True
            self._total = total_bytes
            self._end_if_done()
            self._work_there.notify_all()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for everything.

        Raises:
            Exception: the error of a piece.
            WaitTimeoutError: not there in this time.
            EngineError: closed meanwhile.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._piece_done:
            while self._ended is None or self.failure is not None:
                self._check()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise WaitTimeoutError(
                        f"{self._missing} bytes of weights are not loaded after {timeout_s:g} s"
                    )
                self._piece_done.wait(left)

    def close(self) -> None:
        """End the threads, each after the piece that it has. What is there can be used."""
        with self._work_there:
            self._closed = True
            self._urgent.clear()
            self._rest.clear()
            self._work_there.notify_all()
            self._piece_done.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _queue(self, piece: Piece) -> None:
        if not piece.queued:
            piece.queued = True
            self._unfinished += 1
            self._missing += piece.nbytes

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise EngineError("the model was closed before its weights were there")

    def _start(self) -> None:
        """Start the threads, if that has not been done."""
        if self._threads or self._closed:
            return
        begun = threading.Barrier(self._num_threads + 1)
        try:
            with _torch_threads_kept():
                for number in range(self._num_threads):
                    name = f"inlay-load-{number}"
                    thread = threading.Thread(
                        target=self._run, args=(begun,), name=name, daemon=True
                    )
                    thread.start()
                    self._threads.append(thread)
                begun.wait()
        except BaseException as error:  # Ctrl-C among them: nobody may wait for the others then
            begun.abort()
            if not isinstance(error, RuntimeError):
                raise
            raise ResourceError(
                f"the system refuses {self._num_threads} threads ({error}): set threads to fewer"
            ) from error

    def _run(self, begun: threading.Barrier) -> None:
        _take_one_torch_thread()
        try:
            begun.wait()
        except threading.BrokenBarrierError:
            return
        while (piece := self._next()) is not None:
            try:
                is_there = piece.bring() is not False
            except Exception as error:
                self._fail(error)
                return
            self._done(piece, is_there)

    def _next(self) -> Piece | None:
        """The next piece, when there is one; None: there will be none."""
        with self._work_there:
            while not self._closed and self._ended is None:
                if self._urgent:
                    return self._urgent.popleft()
                while self._rest and not self._giving_way:
                    *_, piece = heapq.heappop(self._rest)
                    if not piece.taken:
                        piece.taken = True
                        return piece
                self._work_there.wait()
            return None

    def _done(self, piece: Piece, is_there: bool) -> None:
        with self._work_there:
            self._unfinished -= 1
            piece.done = True
            if is_there:
                self._missing -= piece.nbytes
                self._brought += piece.nbytes
            self._piece_done.notify_all()
            self._end_if_done()
            tell = self._ended is not None or time.monotonic() - self._told > 1
            if tell:
                self._told = time.monotonic()
        if tell and self.on_change is not None:
            self.on_change()

    def _fail(self, error: Exception) -> None:
        with self._work_there:
            if self.failure is None:
                self.failure = error
                self._ended = time.monotonic()
            self._work_there.notify_all()
            self._piece_done.notify_all()
        if self.on_change is not None:
            self.on_change()

    def _end_if_done(self) -> None:
        if self._sealed and self._unfinished == 0:
            self._ended = time.monotonic()
            self._work_there.notify_all()
            self._piece_done.notify_all()


def _take_one_torch_thread() -> None:
    """PyTorch's own threads serve one caller: a thread that is one of many computes alone. Where
    PyTorch is not loaded, nothing here uses it.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.get_num_threads()  # else it takes the number anew when it computes first
        torch.set_num_threads(1)


@contextmanager
def _torch_threads_kept() -> Iterator[None]:
    """PyTorch sets its threads for the calling thread and for those that come later."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch is not None else 0
    try:
        yield
    finally:
        if torch is not None:
            torch.set_num_threads(before)


class ColdExperts:
    """The routed experts of one layer while they are on their way.

    Attributes:
        expected: some may be missing; False for good once all are there.
    """

    def __init__(self, loading: Loading, pieces: list[Piece]) -> None:
        self.expected = True
        self._loading, self._pieces = loading, pieces

    def require(self, ids_TK: NDArray[np.int32]) -> None:
        """Wait for these experts. Raises as `Loading.require`."""
        pieces = self._pieces
        missing = [piece for one in np.unique(ids_TK) if not (piece := pieces[one]).done]
        if missing:
            self._loading.require(missing)
        elif all(piece.done for piece in pieces):
            self.expected = False
