"""Engines find each other by name, through real services."""

import gc
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inlay.core.errors import (
    ArgumentError,
    ConfigError,
    EndpointError,
    PeerDiedError,
    PeerUnreachableError,
)
from inlay.transfer import TransferEngine
from inlay.transfer.directory import Directory, Entry, open_directory
from inlay.transfer.directory import etcd as etcd_module
from inlay.transfer.directory import keeper as keeper_module
from inlay.transfer.directory import redis as redis_module
from tests.support.directories import KINDS, Service, missing_program, running

ROOT = Path(__file__).parents[3]
TOKEN = b"token of the directory tests...."
WAIT_S = 15


@pytest.fixture(params=KINDS)
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    yield from start(request.param, tmp_path)


@pytest.fixture(params=["etcd", "redis"])
def lease_service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    yield from start(request.param, tmp_path)


def start(kind: str, folder: Path) -> Iterator[Service]:
    if reason := missing_program(kind):
        pytest.skip(reason)
    with running(kind, folder) as service:
        yield service


@pytest.fixture
def directory(service: Service) -> Directory:
    return open_directory(service.url)


def engine(service: Service, name: str | None = None, **options: str) -> TransferEngine:
    return TransferEngine(token=TOKEN, name=name, directory=service.url, **options)


def entry(number: int = 0, address: str = "127.0.0.1:1") -> Entry:
    return Entry(id=f"{number:032x}", started_ns=1, addresses=(address,))


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_name_leads_to_the_engine_and_its_memory(service: Service, directory: Directory) -> None:
    with engine(service, "prefill-0") as target, engine(service) as initiator:
        source = target.register(bytearray(b"0123456789"), name="kv")
        here = initiator.allocate(10)
        peer = initiator.connect("prefill-0")
        assert peer.engine_id == target.engine_id
        initiator.read(here, peer["kv"])
        assert bytes(memoryview(here)) == b"0123456789"
        assert initiator.connect(target.address).engine_id == target.engine_id
        found = directory.look_up("prefill-0")
        assert found is not None and found.id == target.engine_id
        assert found.addresses == (target.address,)
        source.deregister(cancel=True)
    assert directory.look_up("prefill-0") is None


def test_an_unknown_name_is_said_with_the_directory(service: Service) -> None:
    with engine(service) as initiator:
        with pytest.raises(PeerUnreachableError, match=f"decode-7 in .*{service.port}") as raised:
            initiator.connect("decode-7")
        assert raised.value.peer == "decode-7"


def test_a_restarted_engine_takes_its_name_over(service: Service, directory: Directory) -> None:
    with engine(service, "decode-0") as old, engine(service) as initiator:
        with engine(service, "decode-0") as new:
            assert initiator.connect("decode-0").engine_id == new.engine_id
            own = Entry(id=old.engine_id, started_ns=1, addresses=(old.address,))
            assert not directory.renew("decode-0", own)
            directory_of_old = open_directory(service.url)
            directory_of_old.withdraw("decode-0", own)
            old.close()
            assert initiator.connect("decode-0").engine_id == new.engine_id


def test_the_entry_of_a_killed_engine_leads_to_a_typed_error(service: Service) -> None:
    code = (
        "import sys; from inlay.transfer import TransferEngine\n"
        f"engine = TransferEngine(token={TOKEN!r}, name='gone', directory=sys.argv[1])\n"
        "print(engine.address, flush=True); sys.stdin.read()"
    )
    killed = subprocess.Popen(
        [sys.executable, "-c", code, service.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert killed.stdout is not None
    address = killed.stdout.readline().strip()
    killed.kill()
    killed.communicate()
    with engine(service) as initiator:
        with pytest.raises(PeerUnreachableError, match=address):
            initiator.connect("gone")
        # Somebody else listens there now.
        with engine(service, listen=address), pytest.raises(PeerDiedError, match="gone has ended"):
            initiator.connect("gone")


def test_entries_end_with_their_lease(
    lease_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_module, "LEASE_S", 2)
    monkeypatch.setattr(redis_module, "LEASE_S", 2)
    directory = open_directory(lease_service.url)
    directory.publish("short", entry())
    assert directory.look_up("short") == entry()
    eventually(lambda: directory.look_up("short") is None)
    assert directory.renew("short", entry()) and directory.look_up("short") == entry()


def test_a_living_engine_keeps_its_name_also_when_the_service_loses_it(
    lease_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (etcd_module, redis_module, keeper_module):
        monkeypatch.setattr(module, "LEASE_S", 4)
    directory = open_directory(lease_service.url)
    with engine(lease_service, "long"):
        end = time.monotonic() + 6
        while time.monotonic() < end:
            assert directory.look_up("long") is not None
            time.sleep(0.1)
        lease_service.stop()
        with pytest.raises(EndpointError, match=str(lease_service.port)):
            directory.look_up("long")
        lease_service.start()
        eventually(lambda: directory.look_up("long"))


def test_a_service_that_is_down_is_named_at_once(service: Service, directory: Directory) -> None:
    with engine(service) as initiator:
        service.stop()
        for act in (
            lambda: initiator.connect("any"),
            lambda: engine(service, "mine"),
            lambda: directory.publish("mine", entry()),
            lambda: directory.renew("mine", entry()),
        ):
            with pytest.raises(EndpointError, match=f"{service.port}.* does not answer"):
                act()


def test_an_engine_closes_while_its_directory_is_down(service: Service) -> None:
    owner = engine(service, "mine")
    service.stop()
    began = time.monotonic()
    owner.close()
    assert time.monotonic() - began < 10


def test_an_engine_that_is_collected_on_its_own_thread_withdraws_its_name(
    service: Service, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected_on = []

    def collect(self: Directory, name: str, entry: Entry) -> bool:
        gc.collect()
        collected_on.append(threading.current_thread().name)
        return True

    monkeypatch.setattr(keeper_module, "LEASE_S", 0.6)
    monkeypatch.setattr(type(directory), "renew", collect)
    gc.disable()
    try:
        alone: list[object] = [engine(service, "mine")]
        alone.append(alone)
        assert directory.look_up("mine") is not None
        del alone
        eventually(lambda: directory.look_up("mine") is None)
    finally:
        gc.enable()
    assert set(collected_on) == {"inlay-name-mine"}
    eventually(lambda: all(thread.name != collected_on[0] for thread in threading.enumerate()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("behaviour", ["silent", "dripping", "closing", "garbage", "endless"])
def test_what_is_no_directory_is_an_error_in_time(kind: str, behaviour: str) -> None:
    with Odd(behaviour) as port:
        directory = open_directory(f"{kind}://127.0.0.1:{port}")
        began = time.monotonic()
        with pytest.raises(EndpointError, match=str(port)):
            directory.look_up("any", timeout_s=0.3)
        assert time.monotonic() - began < 3


class Odd:
    """A server that behaves oddly; gives its port."""

    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with self._listener.accept()[0] as wire:
            wire.settimeout(5)
            wire.recv(4096)
            data = {"silent": b"", "closing": b"", "garbage": b"SSH-2.0-x\r\n\r\n"}
            if self._behaviour in data:
                wire.sendall(data[self._behaviour])
                if self._behaviour == "silent":
                    self._ended.wait(5)
                return
            slow = self._behaviour == "dripping"
            try:
                while not self._ended.wait(0.05 if slow else 0):
                    wire.sendall(b"x" if slow else b"x" * 65536)
            except OSError:
                pass  # the client has left

    def __enter__(self) -> int:
        self._thread.start()
        port: int = self._listener.getsockname()[1]
        return port

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize("asked", KINDS)
def test_a_service_of_another_kind_is_an_error(service: Service, asked: str) -> None:
    if service.url.startswith(asked):
        pytest.skip("the same kind")
    directory = open_directory(f"{asked}://127.0.0.1:{service.port}/1")
    with pytest.raises(EndpointError, match=str(service.port)):
        directory.publish("any", entry(), timeout_s=1)


def test_what_others_stored_under_a_name_is_refused(tmp_path: Path) -> None:
    for service in start("redis", tmp_path):
        directory = redis_module.RedisDirectory("127.0.0.1", service.port, 0, None)
        for value in (b"", b"[]", b"{", b'{"id": 1, "started_ns": 1, "addresses": []}'):
            directory._ask(1.0, "SET", "inlay:engines:odd", value)
            with pytest.raises(EndpointError, match="odd in redis://.* holds no engine"):
                directory.look_up("odd")


def test_redis_with_a_password_and_a_database(tmp_path: Path) -> None:
    if reason := missing_program("redis"):
        pytest.skip(reason)
    with running("redis", tmp_path, password="secret") as service:
        directory = open_directory(service.url + "/3")
        directory.publish("one", entry())
        assert directory.look_up("one") == entry()
        assert open_directory(service.url).look_up("one") is None  # another database
        for wrong in (service.url.replace("secret", "other"), service.url.replace(":secret@", "")):
            with pytest.raises(EndpointError, match="WRONGPASS|NOAUTH") as raised:
                open_directory(wrong).look_up("one")
            assert "secret" not in str(raised.value) and "other" not in str(raised.value)
        with pytest.raises(EndpointError, match="out of range"):
            open_directory(service.url + "/99").look_up("one")


@pytest.mark.parametrize(
    "url",
    ["etcd", "etcd://", "zookeeper://host:1", "http://host:99999", "redis://host/x", "etcd://[::1"],
)
def test_urls_that_cannot_be(url: str) -> None:
    with pytest.raises(ConfigError, match="write etcd://host:2379, redis://"):
        TransferEngine(token=TOKEN, directory=url)


def test_names_that_cannot_be(service: Service) -> None:
    for name in ("", "a b", "a:b", "x" * 256, "a/../b"):
        with pytest.raises(ArgumentError, match="an engine's name has 1 to 255"):
            engine(service, name)
    with engine(service) as initiator, pytest.raises(ArgumentError, match="1 to 255"):
        initiator.connect("a b")
    with pytest.raises(ArgumentError, match="'mine' needs a directory"):
        TransferEngine(token=TOKEN, name="mine")
    with TransferEngine(token=TOKEN) as alone, pytest.raises(ArgumentError, match="directory="):
        alone.connect("mine")


def test_an_engine_on_all_addresses_publishes_one_that_leads_there(
    service: Service, directory: Directory
) -> None:
    with engine(service, "wide", listen="0.0.0.0:0") as wide, engine(service) as initiator:
        found = directory.look_up("wide")
        assert found is not None and found.addresses == (f"127.0.0.1:{wide.port}",)
        assert initiator.connect("wide").engine_id == wide.engine_id
