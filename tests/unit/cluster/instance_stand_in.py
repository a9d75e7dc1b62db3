"""An instance as its dispatchers see it, on a real socket, whose text is easy to tell."""

import asyncio
import hashlib
from typing import Any

import msgspec
import zmq

from inlay.core.block_hash import Namespace
from inlay.core.errors import InlayError
from inlay.core.instance_messages import (
    FromInstance,
    InstanceInfo,
    KvEvents,
    KvLost,
    KvSnapshot,
    KvTarget,
    LoadReport,
    SetRole,
    Subscribe,
    ToInstance,
)
from inlay.core.kv_format import KvFormat, Plane
from inlay.core.message_socket import MessageSocket
from inlay.core.messages import (
    CancelRequest,
    ChoiceDelta,
    EngineInfo,
    EngineStats,
    GenerateRequest,
    OutputBatch,
    PausedRollouts,
    PauseRollouts,
    RequestOutput,
    RequestTimes,
    ResumeRollouts,
    Rollout,
    RolloutChoice,
    RolloutHandle,
    ServedWeights,
    StatsRequest,
    SwapWeights,
    WeightsSwapped,
)

SECRET = b"a secret"
PAGE_TOKENS = 16
NAMESPACE = Namespace(
    fingerprint="f",
    weight_format="bfloat16",
    kv_format=KvFormat(
        page_tokens=PAGE_TOKENS,
        dtype="float32",
        planes=(Plane("k", 8), Plane("v", 8)),
        layers=2,
    ),
)
ENGINE = EngineInfo(
    model="stand-in",
    architecture="llama",
    parameters=1_000_000,
    max_context_tokens=1000,
    vocab_size=100,
    layers=2,
    moe_layers=0,
    experts=0,
    experts_per_token=0,
    device="cpu",
    weight_format="bfloat16",
    kv_dtype="float32",
    isa="scalar",
    page_tokens=PAGE_TOKENS,
    num_pages=100,
    page_bytes=1024,
    load_s=0.0,
)
_decode = msgspec.msgpack.Decoder(ToInstance).decode
_encode = msgspec.msgpack.Encoder().encode


def next_token(prompt: list[int], seed: int | None, index: int, position: int) -> int:
    """What any instance answers at a position: a function of the request alone."""
    return (sum(prompt) + (seed or 0) + 31 * index + 7 * position) % 100


def key_check(namespace: Namespace = NAMESPACE, secret: bytes = SECRET) -> bytes:
    return hashlib.blake2b(namespace.key(secret)).digest()[:8]


def stand_in_info(name: str, **info: Any) -> InstanceInfo:
    """What an instance of that name says of itself."""
    fields: dict[str, Any] = {
        "name": name,
        "run_id": name + "-1",
        "role": "both",
        "version": "0",
        "engine": ENGINE,
        "namespace": NAMESPACE,
        "transfer": "127.0.0.1:1",
        "max_running": 8,
        "max_waiting": 8,
        "max_batch_tokens": 64,
        "prefill_chunk": 64,
    } | info
    return InstanceInfo(**({"key_check": key_check(fields["namespace"])} | fields))


class InstanceStandIn:
    """A ROUTER that keeps what it is sent and answers when a test says so.

    Attributes:
        heard: messages, in order.
        requests: those that were sent and not cancelled, by id, each with the peer that sent it.
        eager: answer a request as soon as it comes.
        swaps: take new weights as soon as they come.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        name: str,
        *,
        eager: bool = True,
        swaps: bool = True,
        port: int = 0,
        **info: Any,
    ) -> None:
        self.name = name
        self.eager = eager
        self.swaps = swaps
        self.sequence = 0
        self.heard: list[ToInstance] = []
        self.requests: dict[str, GenerateRequest] = {}
        self.paused: set[str] = set()
        self.news = asyncio.Event()
        self._begun: set[str] = set()
        self._peers: dict[str, bytes] = {}
        self._subscribers: set[bytes] = set()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.address = self._socket.last_endpoint.decode().rstrip("\0")
        self._reader = MessageSocket(self._socket, self._received)
        self.info = stand_in_info(name, **info)

    def close(self) -> None:
        """Be gone, at once."""
        self._reader.close()

    def tell(self, message: FromInstance) -> None:
        """Say something to all subscribers."""
        for peer in self._subscribers:
            self._send(peer, message)

    def events(self, skip: int = 0) -> None:
        """Block events without changes; some before them get lost."""
        self.sequence += 1 + skip
        self.tell(KvEvents(run_id=self.info.run_id, sequence=self.sequence, changes=()))

    def snapshot(self) -> KvSnapshot:
        """Of no blocks."""
        return KvSnapshot(run_id=self.info.run_id, sequence=self.sequence, digests=b"")

    def answer(self, request_id: str, count: int | None = None, **fields: Any) -> None:
        """Give the next tokens of all choices of a request, in one output each; None: all."""
        request = self.requests[request_id]
        total = request.params.max_tokens or 1
        produced = request.produced or tuple(() for _ in range(request.params.n))
        done = [total if tokens is None else len(tokens) for tokens in produced]
        last = total if count is None else min(total, max(done) + count)
        first = request_id not in self._begun
        self._begun.add(request_id)
        for position in range(min(done), last):
            deltas = tuple(
                ChoiceDelta(
                    index=index,
                    text=f"{next_token(request.token_ids, request.params.seed, index, position)} ",
                    token_ids=(
                        next_token(request.token_ids, request.params.seed, index, position),
                    ),
                    finish_reason="length" if position + 1 == total else None,
                )
                for index in range(request.params.n)
                if done[index] <= position
            )
            self.output(
                RequestOutput(
                    request_id=request_id,
                    choices=deltas,
                    prompt_tokens=request.num_tokens if first else None,
                    cached_tokens=0 if first else None,
                    finished=position + 1 == total,
                    times=_times(request) if position + 1 == total else None,
                    **fields,
                )
            )
            first = False
        self.requests[request_id] = msgspec.structs.replace(
            request,
            produced=tuple(
                tuple(
                    next_token(request.token_ids, request.params.seed, index, position)
                    for position in range(last)
                )
                for index in range(request.params.n)
            ),
        )

    def output(self, output: RequestOutput) -> None:
        """Say something of a request to who sent it."""
        self._send(self._peers[output.request_id], OutputBatch((output,)))

    def swapped(
        self, message: SwapWeights, error: InlayError | None = None, *, held_at: str = ""
    ) -> None:
        """Have new weights, or say why not."""
        if error is None:
            namespace = msgspec.structs.replace(
                self.info.namespace,
                fingerprint=f"of {message.version}",
                weight_version=sum(message.version.encode()),
            )
            self.info = msgspec.structs.replace(
                self.info,
                namespace=namespace,
                key_check=key_check(namespace),
                weights=ServedWeights(message.version, message.directory, message.asked_s, held_at),
            )
            self.tell(self.info)
        code = None if error is None else error.code
        said = None if error is None else str(error)
        self.tell(WeightsSwapped(version=message.version, seconds=1.0, error=said, error_code=code))

    def _paused(self, ids: tuple[str, ...] | None) -> tuple[Rollout, ...]:
        return tuple(
            Rollout(
                request_id=name,
                prompt_tokens=one.num_tokens,
                version=self.info.weights.version,
                choices=tuple(
                    RolloutChoice(index=index, token_ids=tokens or (), blocks=1)
                    for index, tokens in enumerate(one.produced or ((),) * one.params.n)
                ),
            )
            for name, one in self.requests.items()
            if ids is None or name in ids or name.partition(":")[2] in ids
        )

    def _resumed(self, message: ResumeRollouts) -> PausedRollouts:
        if message.handles is None:
            names = [name for name in self.requests if name in self.paused]
        else:
            wanted = {handle.request_id: handle.version for handle in message.handles}
            found = {
                name: wanted[key]
                for name in self.requests
                for key in (name, name.partition(":")[2])
                if key in wanted
            }
            refused = []
            for name, version in found.items():
                now = self.info.weights.version if name in self.paused else None
                refused.append(RolloutHandle(name.partition(":")[2], version).refusal(now))
            if any(refused):
                return PausedRollouts(refused=tuple(why for why in refused if why is not None))
            names = list(found)
        if not message.only_ask:
            self.paused -= set(names)
        return PausedRollouts(rollouts=tuple(Rollout(request_id=name) for name in names))

    def target(self, request_id: str, num_tokens: int = 16) -> None:
        """Say where the KV of a prompt goes."""
        self._send(
            self._peers[request_id],
            KvTarget(
                request_id=request_id,
                address="127.0.0.1:1",
                segment="pool",
                grant=1,
                first_block=0,
                pages=b"",
                num_tokens=num_tokens,
            ),
        )

    def kv_lost(self, request_id: str) -> None:
        """Say that it waits no more for the KV of a prompt."""
        self._send(self._peers[request_id], KvLost(request_id, "its time is over"))

    async def until(self, kind: type[Any], count: int = 1) -> Any:
        """The last of so many messages of a kind, when it has come."""
        while True:
            found = [message for message in self.heard if isinstance(message, kind)]
            if len(found) >= count:
                return found[count - 1]
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 5)

    def _received(self, frames: list[bytes]) -> None:
        peer, message = frames[0], _decode(frames[1])
        match message:
            case Subscribe():
                self._subscribers.add(peer)
                self._send(peer, self.info)
                self._send(peer, self.snapshot())
                self._send(peer, self.report())
            case GenerateRequest():
                self._peers[message.request_id] = peer
                self.requests[message.request_id] = message
                if self.eager:
                    self.answer(message.request_id)
            case CancelRequest():
                self.requests.pop(message.request_id, None)
                self.paused.discard(message.request_id)
            case StatsRequest():
                self._send(peer, EngineStats(running=1, tier_hit_tokens={"host": 2}))
            case SwapWeights() if self.swaps:
                self.swapped(message)
            case PauseRollouts(ids):
                rollouts = self._paused(ids)
                self.paused |= {one.request_id for one in rollouts}
                self._send(peer, PausedRollouts(rollouts=rollouts))
            case ResumeRollouts():
                self._send(peer, self._resumed(message))
            case SetRole():
                self.info = msgspec.structs.replace(self.info, role=message.role)
                self.tell(self.info)
        self.heard.append(message)
        self.news.set()

    def report(self, **fields: int) -> LoadReport:
        """Of an idle instance."""
        idle = dict.fromkeys(("waiting", "running", "receiving", "prefill_tokens"), 0)
        pages = {"context_tokens": 0, "pages_total": 100, "pages_free": 100, "pages_cached": 0}
        return LoadReport(run_id=self.info.run_id, **{**idle, **pages, **fields})

    def _send(self, peer: bytes, message: FromInstance) -> None:
        self._socket.send_multipart([peer, _encode(message)])
        asyncio.get_running_loop().call_soon(self._reader.receive)


def _times(request: GenerateRequest) -> RequestTimes:
    start_s = request.arrival_s
    return RequestTimes(
        arrival_s=start_s, scheduled_s=start_s, first_token_s=start_s, finished_s=start_s
    )
