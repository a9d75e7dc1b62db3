"""The other ranks of an engine's model: their processes, and what happens when one ends.

    ranks = Ranks(setup, degree)
    model = load_model(..., group=ranks.meet(device))
    model.around_step = partial(ranks.step, 0)
    free_bytes = ranks.loaded()
    ranks.open_pool(PoolSetup(...))
    ...
    ranks.load(1, directory)     # other weights, beside steps
    made_bytes = ranks.loaded_weights()
    ranks.keep({1})
    ...
    ranks.close()

After a step that failed in one rank the others wait for sums that do not come, so such a failure is
the engine's end.
"""

import contextlib
import logging
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from inlay.core.errors import EngineError, InlayError, ModelFileError, RankLostError
from inlay.core.failures import restore
from inlay.core.messages import EngineFailure
from inlay.core.tensor_parallel import Rank
from inlay.engine.rank_wire import (
    RANK_LOST,
    FromRank,
    PoolSetup,
    RankAdapter,
    RankAdapterReady,
    RankExchange,
    RankForget,
    RankKeep,
    RankLoad,
    RankLoaded,
    RankReady,
    RankSetup,
    ToRank,
    read_frame,
    step_of,
    write_frame,
)
from inlay.models.batch import ForwardBatch
from inlay.models.rank_group import RankGroup, listen

if TYPE_CHECKING:
    from inlay.models.adapter_weights import AdapterWeights

log = logging.getLogger(__name__)

_CAUSE_S = 2.0  # until the rank that others lost says, or shows, what happened to it
_STOP_GRACE_S = 2.0


class _Process:
    """One rank's process."""

    def __init__(self, setup: RankSetup) -> None:
        self.number, self.degree = setup.number, setup.degree
        self.answers: queue.SimpleQueue[RankReady | None] = queue.SimpleQueue()
        self.adapters: queue.SimpleQueue[RankAdapterReady | None] = queue.SimpleQueue()
        self.loads: queue.SimpleQueue[RankLoaded | None] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "inlay.engine.rank"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,  # Ctrl-C in a terminal is for the engine, which then ends the ranks
        )
        assert self.popen.stdin is not None and self.popen.stdout is not None
        self._commands, self._output = self.popen.stdin, self.popen.stdout
        with contextlib.suppress(OSError):  # it ended already, and will be found so
            self._commands.write(msgspec.json.encode(setup) + b"\n")
            self._commands.flush()

    @property
    def name(self) -> str:
        """For people."""
        return f"rank {self.number} of {self.degree} (process {self.popen.pid})"

    def send(self, message: ToRank) -> None:
        """Tell it something, in any thread. Raises OSError if it is gone."""
        with self._sending:
            write_frame(self._commands, message)

    def receive(self) -> InlayError | None:
        """Take answers until it ends. Returns why; None: because others did."""
        decode = msgspec.msgpack.Decoder(FromRank).decode
        told: InlayError | None = None
        while (frame := read_frame(self._output)) is not None:
            match decode(frame):
                case RankReady() as answer:
                    self.answers.put(answer)
                case RankAdapterReady() as adapter:
                    self.adapters.put(adapter)
                case RankLoaded() as loaded:
                    self.loads.put(loaded)
                case EngineFailure(code, message):
                    told = restore(code, f"{message} ({self.name})")
        self._output.close()
        self.adapters.put(None)  # nobody waits for more of them
        status = self.popen.wait()
        if told is not None or status == RANK_LOST:
            return told
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended ({status})"
        return RankLostError(f"{self.name} {how}; its part of the model is gone")

    def hang_up(self) -> None:
        """Say that there is no more to do."""
        with contextlib.suppress(OSError):
            self._commands.close()

    def stop(self) -> None:
        """Wait for its end, not for long."""
        try:
            self.popen.wait(_STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


class Ranks:
    """All ranks but the first, which is the caller's.

    Args:
        setup: of each rank but the first, given its number and the port where the ranks meet.

    Attributes:
        failure: why the engine cannot go on; None: it can.
        on_failure: called, from another thread, when there is one.
    """

    def __init__(self, setup: Callable[[int, int], RankSetup], degree: int) -> None:
        self.failure: InlayError | None = None
        self.on_failure: Callable[[], None] | None = None
        self._rank = Rank(0, degree)
        self._store, port = listen()
        self._group: RankGroup | None = None
        self._closing = False
        self._adapter_numbers = count(1)
        self._known = threading.Event()
        self._lock = threading.Lock()
        self._processes = [_Process(setup(number, port)) for number in range(1, degree)]
        self._threads = [
            threading.Thread(target=self._watch, args=(one,), name=f"rank-{one.number}")
            for one in self._processes
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def meet(self, device: str) -> RankGroup:
        """What this rank, the first, computes sums with. Waits until the others have started.

        Raises:
            InlayError: a rank ended.
        """
        self._answers()
        self._group = RankGroup(self._rank, self._store, device)
        return self._group

    def loaded(self) -> int:
        """Wait until the others have their weights. Returns what the scarcest has free for pages.

        Raises:
            InlayError: a rank ended.
        """
        return min(answer.free_bytes for answer in self._answers())

    def open_pool(self, pool: PoolSetup) -> None:
        """Have the others reserve their parts of the pages.

        Raises:
            InlayError: a rank ended.
        """
        self._send(pool)
        self._answers()

    def open_exchange(self, owner: str) -> list[str]:
        """Have the others exchange KV as the transfer engine at `owner` says. Returns the addresses
        of theirs, in order.

        Raises:
            InlayError: a rank ended.
        """
        self._send(RankExchange(owner))
        return [answer.address for answer in self._answers()]

    def load_adapter(
        self, directory: Path, read: "Callable[[Path], AdapterWeights]"
    ) -> "AdapterWeights":
        """Load an adapter in all ranks, beside their steps; if one cannot, none has it. One at a
        time, in any thread.

        Args:
            read: loads this rank's part.

        Raises:
            InlayError: of the first rank that cannot load it, or a rank ended.
        """
        number = next(self._adapter_numbers)
        self._send(RankAdapter(number, str(directory.absolute())))
        try:
            own = replace(read(directory), number=number)
        except BaseException:
            self._adapter_answers()
            self._send(RankForget(number))
            raise
        for process, answer in zip(self._processes, self._adapter_answers(), strict=True):
            error = _adapter_error(process, answer, own.fingerprint)
            if error is not None:
                self.forget_adapter(own)
                raise error
        return own

    def forget_adapter(self, adapter: "AdapterWeights") -> None:
        """Have the others let go of an adapter that no step has any more.

        Raises:
            InlayError: a rank ended.
        """
        self._send(RankForget(adapter.number))

    def load(self, weights: int, directory: Path) -> None:
        """Have the others load other weights beside steps, which will name them by this number.

        Raises:
            InlayError: a rank ended.
        """
        self._send(RankLoad(weights, str(directory)))

    def loaded_weights(self) -> int:
        """Wait until all have done so. Returns the bytes that they made, see `Model.made_bytes`.

        Raises:
            InlayError: a rank could not, and says why; all go on with what they have, those others
                included. Or one ended.
        """
        answers = [(process, process.loads.get()) for process in self._processes]
        if self.failure is not None:
            raise self.failure
        made_bytes = 0
        for process, answer in answers:
            if answer is None:
                raise EngineError("the engine ends while ranks load weights")
            if answer.error is not None:
                code, message = answer.error.code, answer.error.message
                raise restore(code, f"{message} ({process.name})")
            made_bytes += answer.made_bytes
        return made_bytes

    def keep(self, weights: Collection[int]) -> None:
        """Have the others let go of all weights but these. Of ranks that are gone nothing is said:
        the next step does.
        """
        with contextlib.suppress(InlayError):
            self._send(RankKeep(tuple(weights)))

    @contextmanager
    def step(self, weights: int, batch: ForwardBatch) -> Iterator[None]:
        """Have the others run a step beside this rank's.

        Args:
            weights: number of those that compute it.

        Raises:
            InlayError: a rank ended.
        """
        self._send(step_of(batch, weights))
        try:
            yield
        except Exception as error:
            self._give_up(error)
            assert self.failure is not None
            raise self.failure from error

    def close(self) -> None:
        """End the processes."""
        self._closing = True
        for process in self._processes:
            process.hang_up()
            process.loads.put(None)  # a thread may wait for it
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.stop()
            thread.join()

    def _send(self, message: ToRank) -> None:
        for process in self._processes:
            try:
                process.send(message)
            except OSError as error:
                self._give_up(error)
        if self.failure is not None:
            raise self.failure

    def _answers(self) -> list[RankReady]:
        answers = [process.answers.get() for process in self._processes]
        if self.failure is not None:
            raise self.failure
        return [answer for answer in answers if answer is not None]

    def _adapter_answers(self) -> list[RankAdapterReady]:
        """Of all other ranks, in order.

        Raises:
            RankLostError: one has ended.
        """
        answers = [process.adapters.get() for process in self._processes]
        there = [answer for answer in answers if answer is not None]
        if len(there) < len(answers):
            raise RankLostError("a rank ended while an adapter was loaded")
        return there

    def _watch(self, process: _Process) -> None:
        error = process.receive()
        if self._closing:
            return
        if error is not None:
            self._fail(error)
        elif not self._known.wait(_CAUSE_S):
            self._fail(RankLostError(f"{process.name} lost the others"))

    def _give_up(self, error: Exception) -> None:
        """A step failed here: perhaps because a rank is gone, which its thread says then."""
        lost = isinstance(error, RankLostError | OSError)
        if not lost or not self._known.wait(_CAUSE_S):
            told = f"a step failed, and the other ranks cannot go on without it: {error!r}"
            self._fail(error if isinstance(error, InlayError) else EngineError(told))

    def _fail(self, error: InlayError) -> None:
        with self._lock:
            if self.failure is not None:
                return
            self.failure = error
        self._known.set()
        log.error("the ranks cannot go on: %s", error)
        if self._group is not None:
            self._group.abort()  # a GPU would wait for a rank that is gone
        for process in self._processes:
            process.popen.kill()  # alone it is of no use
            process.answers.put(None)  # nobody waits for more of them
            process.loads.put(None)
        if self.on_failure is not None:
            self.on_failure()


def _adapter_error(
    process: _Process, answer: RankAdapterReady, fingerprint: str
) -> InlayError | None:
    if answer.code:
        return restore(answer.code, f"{answer.message} ({process.name})")
    if answer.fingerprint != fingerprint:
        return ModelFileError(
            f"{process.name} has read another adapter ({answer.fingerprint}) than the engine "
            f"({fingerprint}): load it again when its files do not change"
        )
    return None
