"""Something that speaks as an instance and answers each request with one token at once.

It costs next to nothing, so that of a dispatcher before it the dispatcher is what is measured. Run
as a process: it reads the `InstanceInfo` to give (MessagePack as hex) from standard input, prints
its address, and ends with its standard input.
"""

import sys

import msgspec
import zmq

from inlay.core.instance_messages import InstanceInfo, KvSnapshot, LoadReport, Subscribe
from inlay.core.instance_socket import new_socket
from inlay.core.messages import (
    ChoiceDelta,
    EngineStats,
    LoadProgress,
    OutputBatch,
    RequestOutput,
    RequestTimes,
    StatsRequest,
)

_PAGES = 1 << 16


class _Asked(msgspec.Struct, frozen=True, array_like=True, tag="GenerateRequest"):
    """The fields of a request that an answer needs; all others stay unread."""

    request_id: str


def main() -> None:
    """Answer until standard input ends."""
    info = msgspec.msgpack.decode(bytes.fromhex(sys.stdin.readline()), type=InstanceInfo)
    socket = new_socket(zmq.Context(), zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    print(f"tcp://127.0.0.1:{port}", flush=True)
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(_Asked | Subscribe | StatsRequest).decode
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while sys.stdin.fileno() not in dict(poller.poll()):
        peer, data = socket.recv_multipart()
        try:
            asked = decode(data)
        except msgspec.ValidationError:
            continue  # what needs no answer
        for answer in _answers(asked, info):
            socket.send_multipart([peer, encode(answer)])


def _answers(asked: _Asked | Subscribe | StatsRequest, info: InstanceInfo) -> list[msgspec.Struct]:
    match asked:
        case _Asked():
            return [OutputBatch((_output(asked.request_id),))]
        case StatsRequest():
            return [EngineStats()]
    return [
        info,
        LoadProgress(loaded_bytes=1, total_bytes=1, seconds=0.0, over=True),
        KvSnapshot(run_id=info.run_id, sequence=0, digests=b""),
        LoadReport(
            run_id=info.run_id,
            waiting=0,
            running=0,
            receiving=0,
            prefill_tokens=0,
            context_tokens=0,
            pages_total=_PAGES,
            pages_free=_PAGES,
            pages_cached=0,
        ),
    ]


def _output(request_id: str) -> RequestOutput:
    return RequestOutput(
        request_id=request_id,
        choices=(ChoiceDelta(index=0, text="a", token_ids=(300,), finish_reason="length"),),
        prompt_tokens=1,
        cached_tokens=0,
        finished=True,
        times=RequestTimes(arrival_s=0.0, scheduled_s=0.0, first_token_s=0.0, finished_s=0.0),
    )


if __name__ == "__main__":
    main()
