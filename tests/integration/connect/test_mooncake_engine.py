"""Transfers between processes by Mooncake's calls, as P/D transfer and checkpoint-engine make."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.connect.mooncake import TransferEngine, TransferNotify, TransferOpcode
from tests.integration.connect.conftest import PROGRAM

TARGET = Path(__file__).with_name("mooncake_target.py")
PAGE = 16 << 10


class Target:
    """The other process."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", PROGRAM, str(TARGET)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.name, self.address = self._line()

    def ask(self, text: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def target() -> Iterator[Target]:
    other = Target()
    yield other
    other.close()


@pytest.fixture
def engine() -> TransferEngine:
    made = TransferEngine()
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    return made


def test_checkpoint_engine_reads_buckets_of_peers(engine: TransferEngine, target: Target) -> None:
    """register named buffers, batch_transfer_sync_read from the owner, unregister."""
    buckets = [np.zeros(PAGE, np.uint8) for _ in range(48)]
    here = [bucket.ctypes.data for bucket in buckets]
    there = [target.address + number * PAGE for number in range(48)]  # in both registered halves
    assert engine.batch_register_memory(here, [PAGE] * 48) == 0
    assert engine.batch_transfer_sync_read(target.name, here, there, [PAGE] * 48) == 0
    assert all((bucket == 7).all() for bucket in buckets)
    assert engine.batch_unregister_memory(here) == 0


def test_tcp_alone(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    made = TransferEngine()
    assert made.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    page = np.zeros(PAGE, np.uint8)
    assert made.register_memory(page.ctypes.data, PAGE) == 0
    assert made.transfer_sync_read(target.name, page.ctypes.data, target.address, PAGE) == 0
    assert (page == 7).all()
    assert made._engine is not None
    assert {path.transport for path in made._engine.paths()} == {"tcp"}


def test_pages_are_written_by_several_threads(engine: TransferEngine, target: Target) -> None:
    pages = np.arange(1 << 18, dtype=np.uint32).view(np.uint8)
    assert engine.register_memory(pages.ctypes.data, pages.nbytes) == 0
    codes: list[int] = []

    def write(first: int) -> None:
        offsets = [first + number * PAGE for number in range(8)]
        codes.append(
            engine.batch_transfer_sync_write(
                target.name,
                [pages.ctypes.data + offset for offset in offsets],
                [target.address + offset for offset in offsets],
                [PAGE] * 8,
            )
        )

    threads = [threading.Thread(target=write, args=(n * 8 * PAGE,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [0] * 4
    back = np.zeros(32 * PAGE, np.uint8)
    assert engine.register_memory(back.ctypes.data, back.nbytes) == 0
    assert (
        engine.transfer_sync_read(target.name, back.ctypes.data, target.address, back.nbytes) == 0
    )
    assert (back == pages[: 32 * PAGE]).all()


def test_memory_that_was_registered_anew_is_found(engine: TransferEngine, target: Target) -> None:
    address = engine.allocate_managed_buffer(64)
    engine.write_bytes_to_buffer(address, b"\x01" * 8, 8)
    assert engine.transfer_sync_write(target.name, address, target.address, 8) == 0
    assert target.ask("again") == [1] * 8
    engine.write_bytes_to_buffer(address, b"\x02" * 8, 8)
    assert engine.transfer_sync_write(target.name, address, target.address, 8) == 0
    assert target.ask("") == [2] * 8


def test_a_peer_that_died(engine: TransferEngine, target: Target) -> None:
    address = engine.allocate_managed_buffer(64)
    assert engine.send_probe(target.name) == 0
    target.close()
    assert engine.transfer_sync_write(target.name, address, target.address, 8) == -1
    assert engine.send_probe(target.name) != 0
    assert engine.batch_transfer_async_read(target.name, [address], [target.address], [8]) == 0


def test_what_cannot_be_moved(engine: TransferEngine, target: Target) -> None:
    address = engine.allocate_managed_buffer(64)
    size = 1 << 20
    write = engine.transfer_sync_write
    assert write(target.name, address, target.address + size - 4, 8) == -1  # over the end
    assert write(target.name, address, target.address + size // 2 - 4, 8) == -1  # over two
    assert write(target.name, address + 60, target.address, 8) == -1  # over the end here
    assert write(target.name, 4096, target.address, 8) == -1
    assert write(target.name, address, target.address, 0) == -1
    assert write(target.name, address, target.address, -1) == -1
    assert write("nonsense", address, target.address, 8) == -1
    assert engine.transfer_check_status(12345) == -1
    assert engine.get_batch_transfer_status([12345]) == -1
    assert engine.get_batch_transfer_status([]) == 0
    assert target.ask("") == [7] * 8


def test_registrations_that_cannot_be(engine: TransferEngine) -> None:
    memory = np.zeros(8192, np.uint8)
    address = memory.ctypes.data
    assert engine.register_memory(address, 8192) == 0
    assert engine.register_memory(address, 8192) == -7
    assert engine.register_memory(address + 4096, 16) == -7
    room = np.zeros(64, np.uint8)
    other = room.ctypes.data
    assert engine.batch_register_memory([other, address], [64, 64]) == -7
    assert engine.unregister_memory(other) == -3  # all of a batch, or none
    assert engine.batch_register_memory([address], [1, 2]) == -1
    assert engine.register_memory(0, 64) == -1
    assert engine.register_memory(8, 64) == -1
    assert engine.unregister_memory(5) == -3
    assert engine.batch_unregister_memory([address, 5]) == -3
    assert engine.unregister_memory(address) == -3
    assert engine.allocate_managed_buffer(0) == 0
    assert engine.free_managed_buffer(5, 64) < 0


def test_an_engine_that_was_not_initialized() -> None:
    engine = TransferEngine()
    assert engine.get_rpc_port() == 0
    assert engine.register_memory(4096, 64) == -1
    assert engine.transfer_sync_read("127.0.0.1:1", 1, 2, 3) == -1
    assert engine.get_notifies() == []
    assert engine.allocate_managed_buffer(64) == 0
    assert engine.send_probe("127.0.0.1:1") == -1
    assert engine.get_first_buffer_address("127.0.0.1:1") == 0


@pytest.mark.parametrize(
    ("hostname", "metadata", "protocol"),
    [
        ("127.0.0.1", "P2PHANDSHAKE", "pigeon"),
        ("127.0.0.1", "gopher://here", "tcp"),
        ("127.0.0.1", "http://127.0.0.1:9/metadata", "tcp"),
        ("no.such.host.invalid", "P2PHANDSHAKE", "tcp"),
        ("192.0.2.1", "P2PHANDSHAKE", "tcp"),
        ("", "P2PHANDSHAKE", "tcp"),
    ],
)
def test_initialize_refuses(hostname: str, metadata: str, protocol: str) -> None:
    assert TransferEngine().initialize(hostname, metadata, protocol, "") == -1


def test_own_memory_is_a_target(engine: TransferEngine) -> None:
    name = f"127.0.0.1:{engine.get_rpc_port()}"
    one, two = engine.allocate_managed_buffer(64), engine.allocate_managed_buffer(64)
    engine.write_bytes_to_buffer(one, "self", 4)
    note = TransferNotify("n", "m")
    assert engine.transfer_sync(name, one, two, 4, TransferOpcode.Write, note) == 0
    assert engine.read_bytes_from_buffer(two, 4) == b"self"
    assert engine.get_first_buffer_address(name) == min(one, two)
