"""checkpoint-engine's ParameterServers on a host without a GPU; asked for updates by `drivers.py`.

Rank 0 has registered random tensors; `broadcast` updates all ranks by collectives, `p2p` the others
by reads from rank 0 and collectives among themselves: the package's two ways. Each rank's engine,
which copies every tensor into memory of its own, is a thread of the rank. Runs in the environment
`checkpoint-engine` (packages checkpoint-engine, torch for CPUs, mooncake-transfer-engine-non-cuda).

The package asks for a GPU in a few places alone. Here they find a host instead: the device's module
(`HOST`), gloo for nccl, tcp for rdma, plain memory for pinned, and a tensor of the same process for
the handle by which an engine reaches a GPU's memory.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

from benchmarks.transfer.calls import claim_stdout, serve

NAME = "benchmark"
TENSORS = 64
BUCKET_GB = "0.0625"
STEP = 4097  # of the bytes that are summed up to see whether others came
PORTS = 29500, 29700

Ask = Callable[[str, int, int, int], tuple[float, float]]

os.environ.setdefault("GLOG_minloglevel", "3")
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")


def host(ranks: int, rank: int) -> SimpleNamespace:
    """What the package asks a device's module for."""
    properties = SimpleNamespace(uuid=f"rank{rank}")
    return SimpleNamespace(
        device_count=lambda: ranks,
        set_device=lambda index: None,
        get_device_properties=lambda index: properties,
        mem_get_info=lambda: (8 << 30, 8 << 30),
        memory_allocated=lambda: 0,
        memory_reserved=lambda: 0,
        synchronize=lambda: None,
        empty_cache=lambda: None,
        ipc_collect=lambda: None,
    )


buffers: dict[int, Any] = {}


def buffer_of(key: int, *unused: Any) -> Any:
    """The tensor that a handle of this process means."""
    del unused
    return buffers[key]


def handle_of(tensor: Any) -> tuple[Any, tuple[int, ...]]:
    """Such a handle, in the form of those of devices: the seventh number is one."""
    buffers.clear()
    buffers[0] = tensor
    return buffer_of, (0,) * 7


def without_devices(ranks: int, rank: int) -> Any:
    """The package, which finds a host where it looks for devices."""
    import torch
    from checkpoint_engine import ps, worker  # type: ignore[import-not-found]
    from loguru import logger  # type: ignore[import-not-found]

    logger.remove()

    class Host(ps.DeviceManager):  # type: ignore[misc]
        device_module = host(ranks, rank)
        backend = "gloo"
        transfer_engine_protocol = "tcp"

        def __init__(self) -> None:
            self.device_type = "cpu"

        def rdma_device(self, index: int) -> str:
            del index
            return ""

    plain = torch.empty

    def empty(*size: Any, pin_memory: bool = False, **options: Any) -> Any:
        del pin_memory
        return plain(*size, **options)

    torch.empty = empty
    ps.DeviceManager = worker.DeviceManager = Host
    ps.reduce_tensor = handle_of
    return ps


def run_rank(rank: int, ranks: int, size: int, port: int, orders: Connection) -> None:
    """One parameter server and its engine, told by the first process which way to update."""
    os.environ |= {
        "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
        "PS_MAX_BUCKET_SIZE_GB": BUCKET_GB,
    }  # fmt: skip
    ps = without_devices(ranks, rank)
    import torch
    import zmq
    from checkpoint_engine.worker import (  # type: ignore[import-not-found]
        update_weights_from_ipc,
    )

    def drawn() -> Iterator[tuple[str, Any]]:
        torch.manual_seed(0)
        for number in range(TENSORS):
            yield f"tensor{number}", torch.randint(256, (size // TENSORS,), dtype=torch.uint8)

    server = ps.ParameterServer(auto_pg=False)
    server.init_process_group()
    if rank == 0:
        server.register_checkpoint(NAME, named_tensors=dict(drawn()))
    server.gather_metas(NAME)
    sums: dict[str, int] = {}
    own: dict[str, Any] = {}  # rank 0's engine keeps nothing: it is the trainer's
    for name, tensor in drawn() if rank else ():
        sums[name] = int(tensor[::STEP].sum())
        own[name] = tensor.fill_(1)
    context = zmq.Context()

    def load(weights: list[tuple[str, Any]]) -> None:
        for name, tensor in weights if own else ():
            own[name].copy_(tensor)

    def engine(paths: list[tuple[str, str]]) -> None:
        path = dict(paths)[server._device_uuid]
        update_weights_from_ipc(context, path, 0, run=load)

    orders.send("ready")
    while (way := orders.recv()) is not None:
        server.update(NAME, engine, ranks=None if way == "broadcast" else list(range(1, ranks)))
        orders.send("done")
        if orders.recv():  # look once whether it came
            orders.send(all(int(own[name][::STEP].sum()) == sums[name] for name in own))
            for tensor in own.values():
                tensor.fill_(1)


class Ranks:
    """The processes, for one size."""

    def __init__(self, ranks: int, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        port = PORTS[0] + os.getpid() % (PORTS[1] - PORTS[0]) * 2
        self._orders = []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            arguments = (rank, ranks, size, port, theirs)
            context.Process(target=run_rank, args=arguments, daemon=True).start()
            theirs.close()
            self._orders.append(ours)
        self._everyone()
        self._looked: set[str] = set()

    def update(self, way: str) -> float:
        """Seconds until all have it."""
        began_s = time.monotonic()
        for one in self._orders:
            one.send(way)
        self._everyone()
        seconds = time.monotonic() - began_s
        look = way not in self._looked
        self._looked.add(way)
        for one in self._orders:
            one.send(look)
        if look and not all(self._everyone()):
            raise RuntimeError(f"{way}: other bytes came")
        return seconds

    def _everyone(self) -> list[Any]:
        return [one.recv() for one in self._orders]


def main(answers: int) -> None:
    """Answer `WAY SIZE PEERS 1`."""
    started: dict[tuple[int, int], Ranks] = {}

    def answer(way: str, size: int, peers: int, calls: int) -> tuple[float, float]:
        del calls
        key = (peers, size)
        if key not in started:
            started[key] = Ranks(peers + 1, size)
        seconds = started[key].update(way)
        return seconds, seconds

    serve(answers, answer)


if __name__ == "__main__":
    main(claim_stdout())
