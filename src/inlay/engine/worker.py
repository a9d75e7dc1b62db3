"""An engine in a process of its own: `python -m inlay.engine.worker`, started by `EngineClient`.

Reads its setup from standard input, answers with `EngineInfo` or `EngineFailure`, then serves
messages of `core.messages` until standard input is closed or its parent is gone. One message
carries all outputs of a step. Without work it sleeps in `poll` and uses no CPU.
"""

import contextlib
import logging
import os
import select
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, BinaryIO

import msgspec
import zmq

from inlay.core.errors import EngineError, EngineStartError, InlayError, RequestError
from inlay.core.failures import failure_message, failure_output
from inlay.core.log import configure_logging, parse_log_setting
from inlay.core.messages import (
    CancelRequest,
    EngineFailure,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    LoadProgress,
    OutputBatch,
    ResetPrefixCache,
    StatsRequest,
    ToEngine,
)
from inlay.core.settings import read_settings
from inlay.engine.wire import START_FAILED, WorkerSetup, address, new_socket

if TYPE_CHECKING:
    from inlay.engine.engine import Engine

log = logging.getLogger(__name__)
_EXIT_GRACE_S = 2.0
_TELL_S = 1.0
_FLUSH_S = 1.0  # for blocks that were computed last; within the grace


class _ParentWatch:
    """Ends this process when the parent closes standard input or dies.

    A thread waits for both, so that loading a model or a long step does not delay the end. It
    first asks the main loop to return; if that takes too long, the process ends anyway.
    """

    def __init__(self, setup: WorkerSetup) -> None:
        self._setup = setup
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.stopping = threading.Event()
        threading.Thread(target=self._run, name="inlay-parent-watch", daemon=True).start()

    def _run(self) -> None:
        watched = [sys.stdin.fileno()]
        with contextlib.suppress(OSError):
            watched.append(os.pidfd_open(self._setup.parent_pid))
        if os.getppid() == self._setup.parent_pid:
            select.select(watched, [], [])
        self.stopping.set()
        os.eventfd_write(self.wake, 1)
        time.sleep(_EXIT_GRACE_S)
        shutil.rmtree(self._setup.directory, ignore_errors=True)
        os._exit(0)


class _Server:
    """The loop between socket and engine."""

    def __init__(self, engine: "Engine", socket: "zmq.Socket[bytes]", watch: _ParentWatch) -> None:
        self._engine = engine
        self._socket = socket
        self._watch = watch
        self._told = LoadProgress(loaded_bytes=0, total_bytes=0, seconds=0.0, over=False)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(watch.wake, zmq.POLLIN)

    def run(self) -> bool:
        """Serve until the parent wants no more; False where the engine cannot go on."""
        self._tell_progress()
        self.send(self._engine.info)
        while not self._watch.stopping.is_set():
            if not self._engine.has_work:
                self._sleep()
            self._receive()
            outputs = self._engine.step()
            if outputs:
                self.send(OutputBatch(tuple(outputs)))
            if self._engine.failure is not None:
                self.send(OutputBatch(tuple(self._engine.step())))  # requests are told first
                self.send(failure_message(self._engine.failure))
                return False
            if not self._told.over:
                self._tell_progress()
        return True

    def _tell_progress(self) -> None:
        """Say how far loading is, now and then."""
        told, now = self._told, self._engine.load_progress
        if now.over or now.seconds - told.seconds >= _TELL_S or told.total_bytes == 0:
            self._told = now
            self.send(now)

    def send(
        self, message: OutputBatch | EngineInfo | EngineStats | EngineFailure | LoadProgress
    ) -> None:
        """Send to the front; never blocks."""
        with contextlib.suppress(zmq.Again):
            self._socket.send(self._encode(message), zmq.NOBLOCK)

    def _sleep(self) -> None:
        sleep_s = self._engine.sleep_s
        self._poller.poll(None if sleep_s is None else int(1000 * sleep_s) + 1)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._watch.wake)

    def _receive(self) -> None:
        """Handle all messages that are there."""
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decode(data)
            except msgspec.MsgspecError as error:
                self._refuse(data, error)
            else:
                self._handle(message)

    def _handle(self, message: ToEngine) -> None:
        match message:
            case GenerateRequest():
                self._add(message)
            case CancelRequest():
                self._engine.cancel(message.request_id)
            case StatsRequest():
                self.send(self._engine.stats())
            case ResetPrefixCache():
                self._engine.reset_prefix_cache()

    def _refuse(self, data: bytes, error: msgspec.MsgspecError) -> None:
        """Answer a message that is not what it should be, so that nobody waits for it."""
        log.error("a message of %d bytes cannot be read: %s", len(data), error)
        with contextlib.suppress(msgspec.MsgspecError):
            match msgspec.msgpack.decode(data):
                case ["GenerateRequest", str(request_id), *_]:
                    refusal = RequestError(f"the request has a wrong type: {error}")
                    self.send(OutputBatch((failure_output(request_id, refusal),)))

    def _add(self, request: GenerateRequest) -> None:
        try:
            self._engine.add(request)
        except InlayError as error:
            refusal = failure_output(request.request_id, error)
        except Exception as error:
            log.exception("request %s cannot be added", request.request_id)
            refusal = failure_output(
                request.request_id, EngineError(f"the request cannot be added: {error!r}")
            )
        else:
            return
        self.send(OutputBatch((refusal,)))


def _serve(setup: WorkerSetup, socket: "zmq.Socket[bytes]", watch: _ParentWatch) -> int:
    try:
        from inlay.engine.engine import Engine  # loads torch; the parent is watched by now

        engine = Engine(setup.config, on_ready=lambda: os.eventfd_write(watch.wake, 1))
    except Exception as error:
        socket.send(msgspec.msgpack.encode(failure_message(_reason(error))))
        return START_FAILED
    served = _Server(engine, socket, watch).run()
    engine.flush(_FLUSH_S)
    engine.close()
    return 0 if served else START_FAILED


def _reason(error: Exception) -> InlayError:
    """Why the engine cannot start, in one sentence."""
    if isinstance(error, InlayError):
        return error
    log.debug("the engine cannot start", exc_info=error)
    first_line = next(iter(str(error).strip().splitlines()), "")
    what = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return EngineStartError(
        f"the engine cannot start ({what}): set INLAY_LOG=debug to see where it failed"
    )


def main(stdin: BinaryIO | None = None) -> int:
    """Run a worker; returns the exit status."""
    # The parent decides when to stop: Ctrl-C and the end of a service reach it, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line = (sys.stdin.buffer if stdin is None else stdin).readline()
    setup = msgspec.json.decode(line, type=WorkerSetup)
    configure_logging(parse_log_setting(read_settings().log))
    watch = _ParentWatch(setup)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = new_socket(context)
    socket.connect(address(setup.directory))
    try:
        return _serve(setup, socket, watch)
    finally:
        socket.close()
        context.term()
        # The parent tidies up, too, unless it was killed.
        shutil.rmtree(setup.directory, ignore_errors=True)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking torch and its threads down in order would cost a second or two
