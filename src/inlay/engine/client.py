"""The front's side of an engine process: start it, send requests, stream outputs.

    client = await EngineClient.start(EngineConfig(model=directory))
    async for output in client.generate(request):
        ...
    await client.aclose()

Imports no torch. All methods are called on the event loop that started the client.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from inlay.core.errors import (
    EngineDiedError,
    EngineError,
    EngineStartError,
    InlayError,
    RequestError,
    WeightsConflictError,
    WeightsError,
)
from inlay.core.failures import error_of, not_paused, not_running, restore
from inlay.core.instance_socket import new_socket
from inlay.core.messages import (
    AdapterAnswer,
    CancelRequest,
    EngineFailure,
    EngineInfo,
    EngineStats,
    FromEngine,
    GenerateRequest,
    InFlight,
    LoadAdapter,
    LoadProgress,
    OutputBatch,
    PausedRollouts,
    PauseRollouts,
    PauseSession,
    RequestOutput,
    ResetPrefixCache,
    ResumeKv,
    ResumeRollouts,
    ResumeSession,
    Rollout,
    RolloutHandle,
    SessionBlocks,
    StatsRequest,
    SwapWeights,
    ToEngine,
    UnloadAdapter,
    WeightsSwapped,
)
from inlay.engine.config import EngineConfig
from inlay.engine.wire import START_FAILED, WorkerSetup, front_address

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", EngineStats, SessionBlocks, PausedRollouts)

_STOP_GRACE_S = 5.0
_ANSWER_S = 30.0
_ADAPTER_S = 300.0
_FAREWELL_MS = 1000
_MAX_SOCKET_PATH = 90  # of 107 bytes that Linux allows
_TAIL_LINES = 20


class EngineClient:
    """One engine process; made by `start`.

    Attributes:
        info: what the engine serves.
        load_progress: how much of its weights is in memory, as it said last.
    """

    info: EngineInfo
    load_progress: LoadProgress

    def __init__(self, process: "subprocess.Popen[bytes]", directory: Path) -> None:
        """Use `start`."""
        self._process = process
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(FromEngine).decode
        self._open_ids: set[str] = set()
        # By an id of our own: the engine may still answer a closed stream whose id is used again.
        self._streams: dict[str, asyncio.Queue[RequestOutput | InlayError]] = {}
        self._stream_numbers = itertools.count(1)
        self._swap: asyncio.Future[WeightsSwapped] | None = None
        self._asked: deque[asyncio.Future[Any]] = deque()  # answered in this order
        self._adapters: dict[str, asyncio.Future[AdapterAnswer]] = {}  # that are on their way
        self._ready: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._exited: asyncio.Future[None] = self._loop.create_future()
        self._stderr_tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._death: InlayError | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = new_socket(self._context, zmq.DEALER)
        self._socket.bind(front_address(directory))
        assert process.stderr is not None
        self._stderr = process.stderr.fileno()
        os.set_blocking(self._stderr, False)
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._socket.fileno(), self._receive)
        self._loop.add_reader(self._stderr, self._read_stderr)
        self._loop.add_reader(self._pidfd, self._on_exit)
        self._loop.call_soon(self._receive)

    @classmethod
    async def start(cls, config: EngineConfig, *, timeout_s: float = 300.0) -> "EngineClient":
        """Start an engine process and wait until it can serve.

        Raises:
            ModelError, ConfigError: the engine's own reason not to start.
            EngineStartError: it ended or said nothing in `timeout_s`; with the end of its log.
        """
        directory = _private_directory()
        try:
            process = _spawn(config, directory)
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        client = cls(process, directory)
        try:
            client.info = await asyncio.wait_for(asyncio.shield(client._ready), timeout_s)
        except TimeoutError:
            message = f"the engine was not ready after {timeout_s:g} s{client._log_end()}"
            await client.aclose()
            raise EngineStartError(message) from None
        except BaseException:
            await client.aclose()
            raise
        return client

    @property
    def alive(self) -> bool:
        """Whether requests can be sent."""
        return self._death is None

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        return self._process.pid

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[RequestOutput]:
        """Stream the outputs of a request, one per engine step that touched it.

        Closing or cancelling the iterator cancels the request, which frees its pages at once.

        Raises:
            RequestError: the engine refuses the request as written.
            OverloadedError: the engine's queue is full.
            EngineError: a step failed; `EngineDiedError` when the engine's process ended.
        """
        self._check_alive()
        request_id = request.request_id
        if request_id in self._open_ids:
            raise RequestError(f"request id {request_id!r} is in use", "request_id")
        wire_id = f"{next(self._stream_numbers)}:{request_id}"
        try:
            data = self._encode(msgspec.structs.replace(request, request_id=wire_id))
        except (OverflowError, TypeError, msgspec.MsgspecError) as cause:
            raise RequestError(f"the request cannot be sent: {cause}") from cause
        queue: asyncio.Queue[RequestOutput | InlayError] = asyncio.Queue()
        self._open_ids.add(request_id)
        self._streams[wire_id] = queue
        finished = False
        try:
            self._send(data)
            while not finished:
                item = await queue.get()
                if isinstance(item, InlayError):
                    finished = True
                    raise item
                finished = item.finished
                error = error_of(item)
                if error is not None:
                    raise error
                yield msgspec.structs.replace(item, request_id=request_id)
        finally:
            self._open_ids.discard(request_id)
            self._streams.pop(wire_id, None)
            if not finished and self.alive:
                self._send(self._encode(CancelRequest(wire_id)))

    async def stats(self) -> EngineStats:
        """Gauges and totals of the engine, after all messages sent so far.

        Raises:
            EngineDiedError: the engine's process ended.
            EngineError: no answer in half a minute.
        """
        return await self._ask(StatsRequest(), EngineStats)

    async def hint_session(self, session: str, *, paused: bool) -> SessionBlocks:
        """A session waits for something else, or its next turn is near.

        Raises:
            EngineDiedError, EngineError: as `stats`.
        """
        hint = PauseSession(session) if paused else ResumeSession(session)
        return await self._ask(hint, SessionBlocks)

    async def load_adapter(self, name: str, path: str) -> str:
        """Load an adapter from a directory beside the requests, which go on meanwhile.

        Returns:
            The fingerprint of its content.

        Raises:
            RequestError: the name is in use.
            ModelError: the directory holds no adapter of this model, or it cannot be served here.
            EngineDiedError, EngineError: as `stats`; no answer in five minutes.
        """
        return (await self._of_adapter(name, LoadAdapter(name, path))).fingerprint

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter.

        Raises:
            AdapterNotFoundError: none has the name.
            AdapterInUseError: requests use it.
            EngineDiedError, EngineError: as `load_adapter`.
        """
        await self._of_adapter(name, UnloadAdapter(name))

    async def _of_adapter(self, name: str, message: ToEngine) -> AdapterAnswer:
        self._check_alive()
        if name in self._adapters:
            raise RequestError(
                f"adapter {name!r} is being loaded or unloaded: wait for that", "lora_name"
            )
        future = self._adapters[name] = self._loop.create_future()
        self._send(self._encode(message))
        try:
            answer: AdapterAnswer = await asyncio.wait_for(asyncio.shield(future), _ADAPTER_S)
        except TimeoutError:
            raise EngineError(
                f"adapter {name!r} was not ready after {_ADAPTER_S:g} s: look at /v1/models later"
            ) from None
        if answer.code:
            raise restore(answer.code, answer.message, "lora_name")
        return answer

    async def swap_weights(
        self, directory: Path, version: str, in_flight: InFlight = "finish"
    ) -> WeightsSwapped:
        """Replace the engine's weights while it serves; returns when new requests have them.

        Raises:
            WeightsMismatchError, WeightsError, ModelError: the old ones stay; says why.
            EngineDiedError: the engine's process ended.
        """
        self._check_alive()
        if self._swap is not None:
            raise WeightsConflictError("weights are being loaded: update again when they are there")
        self._swap = self._loop.create_future()
        try:
            self._send(self._encode(SwapWeights(str(directory), version, in_flight)))
            swapped = await asyncio.shield(self._swap)
        finally:
            if self._swap.done():
                self._swap = None
            else:  # the caller gave up; the engine has not
                self._swap.add_done_callback(self._forget_swap)
        if swapped.error is not None:
            raise restore(swapped.error_code or WeightsError.code, swapped.error)
        return swapped

    def _forget_swap(self, future: "asyncio.Future[WeightsSwapped]") -> None:
        self._swap = None
        if not future.cancelled():
            future.exception()

    async def pause_rollouts(self, request_ids: Sequence[str] | None = None) -> list[Rollout]:
        """Stop requests, or all, until they are resumed; says how far they are.

        Raises:
            RequestError: there is no such request.
            EngineDiedError, EngineError: as `stats`.
        """
        for request_id in request_ids or ():
            self._check_open(request_id)
        message = PauseRollouts(None if request_ids is None else tuple(request_ids))
        return await self._rollouts(message)

    async def resume_rollouts(
        self, handles: Sequence[RolloutHandle] | None = None, kv: ResumeKv = "keep"
    ) -> list[str]:
        """Let paused requests, or all, go on; returns their ids.

        Raises:
            RequestError: there is no such request.
            NotPausedError: some are not paused, or by other weights; none goes on.
            EngineDiedError, EngineError: as `stats`.
        """
        for handle in handles or ():
            self._check_open(handle.request_id)
        message = ResumeRollouts(None if handles is None else tuple(handles), kv)
        return [one.request_id for one in await self._rollouts(message)]

    async def _rollouts(self, message: PauseRollouts | ResumeRollouts) -> list[Rollout]:
        answer = await self._ask(message, PausedRollouts)
        if answer.refused:
            raise not_paused(answer.refused)
        return [
            msgspec.structs.replace(one, request_id=one.request_id.partition(":")[2])
            for one in answer.rollouts
        ]

    def _check_open(self, request_id: str) -> None:
        if request_id not in self._open_ids:
            raise not_running(request_id)

    async def _ask(self, message: ToEngine, answer: type[Answer]) -> Answer:
        self._check_alive()
        # A future that was given up stays in the queue, since its answer may still come.
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._asked.append(future)
        self._send(self._encode(message))
        try:
            return await asyncio.wait_for(future, _ANSWER_S)
        except TimeoutError:
            raise EngineError(
                f"the engine did not answer in {_ANSWER_S:g} s: it is in a very long step, or "
                "hangs; try again later, or restart it"
            ) from None

    async def reset_prefix_cache(self) -> None:
        """Forget all cached blocks that no request uses; returns when it is done.

        Raises:
            EngineDiedError, EngineError: as `stats`.
        """
        self._check_alive()
        self._send(self._encode(ResetPrefixCache()))
        await self.stats()

    async def aclose(self) -> None:
        """Stop the engine process. Requests still open end with `EngineDiedError`."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()  # tells the worker to stop
        self._die(EngineDiedError("the engine was stopped"))
        if self._ready.cancel():
            self._process.kill()  # it may be in the middle of loading, and holds nothing yet
        try:
            await asyncio.wait_for(asyncio.shield(self._exited), _STOP_GRACE_S)
        except TimeoutError:
            self._process.kill()
            await self._exited

    # Messages

    def _send(self, data: bytes) -> None:
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:  # the peer is gone; its exit will be noticed next
            return
        # Sending may consume the edge that announces a message (ZMQ_FD is edge-triggered).
        self._loop.call_soon(self._receive)

    def _receive(self) -> None:
        while not self._socket.closed:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message = self._decode(data)
            except msgspec.MsgspecError:
                log.exception("a message of the engine cannot be read")
                continue
            self._handle(message)

    def _handle(self, message: FromEngine) -> None:
        match message:
            case OutputBatch():
                for output in message.outputs:
                    queue = self._streams.get(output.request_id)
                    if queue is not None:
                        queue.put_nowait(output)
            case WeightsSwapped():
                if self._swap is not None and not self._swap.done():
                    self._swap.set_result(message)
            case EngineStats() | SessionBlocks() | PausedRollouts():
                future = self._asked.popleft()
                if not future.done():
                    future.set_result(message)
            case AdapterAnswer():
                waiting = self._adapters.pop(message.name, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(message)
            case EngineInfo():
                if not self._ready.done():
                    self._ready.set_result(message)
            case LoadProgress():
                self.load_progress = message
            case EngineFailure():
                if not self._ready.done():
                    self._ready.set_exception(restore(message.code, message.message))
                else:
                    self._die(EngineDiedError(message.message))

    # The process's end

    def _read_stderr(self) -> bool:
        """Pass the engine's log on; False when there is nothing to read."""
        try:
            data = os.read(self._stderr, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._stderr)
            return False
        text = data.decode(errors="replace")
        self._stderr_tail.extend(line for line in text.splitlines() if line.strip())
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(text)
            sys.stderr.flush()
        return True

    def _on_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        status = self._process.wait()
        # What the engine sent before its end may still be on its way to this process.
        self._receive()
        if status == START_FAILED and not self._ready.done():
            self._socket.poll(_FAREWELL_MS)
            self._receive()
        while self._read_stderr():
            pass
        how = (
            f"was killed by {signal.Signals(-status).name}"
            if status < 0
            else f"ended with exit status {status}"
        )
        message = f"the engine's process {how}{self._log_end()}"
        if not self._ready.done():
            self._ready.set_exception(EngineStartError(message))
        self._die(EngineDiedError(message))
        self._cleanup()
        self._exited.set_result(None)

    def _die(self, error: InlayError) -> None:
        if self._death is not None:
            return
        self._death = error
        for queue in self._streams.values():
            queue.put_nowait(EngineDiedError(str(error)))
        asked = [*self._asked, *self._adapters.values()]
        if self._swap is not None:
            asked.append(self._swap)
        for future in asked:
            if not future.done():
                future.set_exception(EngineDiedError(str(error)))
        self._asked.clear()
        self._adapters.clear()

    def _cleanup(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._stderr)
        self._socket.close(linger=0)
        self._context.term()
        os.close(self._pidfd)
        for stream in (self._process.stdin, self._process.stderr):
            if stream is not None:
                stream.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDiedError(str(self._death))

    def _log_end(self) -> str:
        """The last lines of the engine's log, to append to a message."""
        if not self._stderr_tail:
            return ""
        return "; its log ends with:" + "".join(f"\n  {line}" for line in self._stderr_tail)


def _spawn(config: EngineConfig, directory: Path) -> "subprocess.Popen[bytes]":
    setup = WorkerSetup(config=config, directory=str(directory), parent_pid=os.getpid())
    process = subprocess.Popen(
        [sys.executable, "-m", "inlay.engine.worker"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,  # else closing stdin would send again what a dead worker did not take
        process_group=0,  # Ctrl-C in a terminal is for the front, which then ends the worker
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended already; the client will say why
        process.stdin.write(msgspec.json.encode(setup) + b"\n")
    return process


def _private_directory() -> Path:
    """A new directory that only this user may enter, with a path short enough for a socket."""
    directory = tempfile.mkdtemp(prefix="inlay-")
    if len(directory.encode()) > _MAX_SOCKET_PATH:
        os.rmdir(directory)
        directory = tempfile.mkdtemp(prefix="inlay-", dir="/tmp")
    return Path(directory)
