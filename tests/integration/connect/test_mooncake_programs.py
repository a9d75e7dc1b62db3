"""Mooncake's programs by their flags, and the scripts that use them."""

import importlib
import json
import os
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from inlay.connect.mooncake import MooncakeDistributedStore, TransferEngine
from tests.integration.connect.conftest import PROGRAM, Setup
from tests.support.store import StoreProcess
from tests.support.tree import ROOT

HELLO = ROOT / "examples" / "mooncake" / "hello.py"
Start = Callable[..., StoreProcess]


def ask(url: str, method: str = "GET", body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(url, body, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_hello_world(start: Start, tmp_path: Path) -> None:
    master = start(
        "master",
        "--port=0",
        "--metrics_port=0",
        "--enable_http_metadata_server=true",
        "--http_metadata_server_port=0",
    )
    metadata = master.wait_for(r"metadata at http://(\S+)/metadata")[1]
    address = master.wait_for(r"master at (127.0.0.1:\d+)")[1]
    text = HELLO.read_text().replace("localhost:8080", metadata).replace("localhost:50051", address)
    script = tmp_path / "hello.py"
    script.write_text(text)
    command = [sys.executable, "-m", PROGRAM, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "Hello, Mooncake Store!\n", done.stderr
    assert master.stop() == 0


@pytest.mark.netns
def test_hello_world_at_the_usual_ports(tmp_path: Path) -> None:
    helper = Path(__file__).with_name("hello_alone.py")
    command = ["unshare", "--net", sys.executable, str(helper), str(tmp_path), str(HELLO)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Hello, Mooncake Store!\n", done.stderr


def test_master_says_what_has_no_effect(start: Start) -> None:
    master = start("master", "--port=0", "--metrics_port=0", "--memory_allocator=offset")
    master.wait_for("without effect here: --memory_allocator")
    master.wait_for("master at")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--no_such=1"], "there is no flag --no_such"),
        (["--default_kv_lease_ttl=soon"], "'soon' is no duration"),
        (["--enable_ha=true"], "--enable_ha needs etcd"),
        (["--rpc_port=x"], "--rpc_port is 'x'"),
    ],
)
def test_master_refuses(flags: list[str], says: str) -> None:
    command = [sys.executable, "-m", f"{PROGRAM}.master", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and says in done.stderr


def test_objects_over_http(start: Start, master: str, setup: Setup, tmp_path: Path) -> None:
    store = setup()
    config = {
        "local_hostname": "localhost",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": "replaced",
        "global_segment_size": "16mb",
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    service = start("rest", "--port=0", f"--config={file}", f"-Dmaster_server_address={master}")
    url = service.wait_for(r"objects at (http://\S+)")[1]
    body = json.dumps({"key": "a key", "value": "text"}).encode()
    assert ask(f"{url}/put", "PUT", body) == (200, b'{"status": "success"}')
    assert store.get("a key") == b"text"
    assert ask(f"{url}/get/a%20key") == (200, b"text")
    assert ask(f"{url}/exist/a%20key") == (200, b'{"exists": true}')
    assert ask(f"{url}/put", "PUT", b"{}")[0] == 400
    assert ask(f"{url}/put", "PUT", b"[]")[0] == 400
    assert ask(f"{url}/get/nothing")[0] == 404
    assert ask(f"{url}/remove/a%20key", "DELETE")[0] == 200
    assert store.is_exist("a key") == 0
    assert ask(f"{url}/remove/a%20key", "DELETE")[0] == 500
    store.put("other", b"x")
    assert ask(f"{url}/remove_all", "DELETE") == (200, b'{"status": "success removed 1 keys"}')
    assert ask(f"{url}/nothing")[0] == 404
    assert service.stop() == 0


def test_client_holds_memory_for_others(start: Start, master: str) -> None:
    client = start(
        "client",
        f"--master_server_address={master}",
        "--port=0",
        "--global_segment_size=32 MB",
        "--enable_http_server=true",
        "--http_port=0",
    )
    address = client.wait_for(r"client \S+ at (\S+)")[1]
    dummy = MooncakeDistributedStore()
    assert dummy.setup_dummy(1 << 20, 1 << 20, address) == 0
    place = dummy.alloc_from_mem_pool(4096)
    assert place > 0 and dummy.alloc_from_mem_pool(1 << 20) == 0
    assert dummy.register_buffer(place, 4096) == 0
    assert dummy.put_from("held", place, 4096) == 0
    assert dummy.get("held") == bytes(4096)
    assert dummy.remove("held", True) == 0
    dummy.close()
    assert client.stop() == 0


def test_nobody_answers_for_a_dummy() -> None:
    assert MooncakeDistributedStore().setup_dummy(1 << 20, 1 << 20, "127.0.0.1:9") == -1


def test_engines_find_each_other_by_name(start: Start) -> None:
    server = start("metadata_server", "--port=0")
    url = server.wait_for(r"metadata at (\S+)")[1]
    one, two = TransferEngine(), TransferEngine()
    assert one.initialize("localhost:0", url, "tcp", "") == 0
    assert two.initialize("127.0.0.1", url, "rdma", "") == 0
    here, there = one.allocate_managed_buffer(4096), two.allocate_managed_buffer(4096)
    assert one.write_bytes_to_buffer(here, b"by name", 7) == 0
    assert one.transfer_sync_write("127.0.0.1", here, there, 7) == 0
    assert two.read_bytes_from_buffer(there, 7) == b"by name"
    assert one.send_probe("nobody") != 0


def test_the_shim_on_the_path_and_modules(tmp_path: Path) -> None:
    def run(*words: str, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
            env={**os.environ, **variables},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    (tmp_path / "told.py").write_text(
        "import sys, mooncake.store as store\nprint(store.__doc__, sys.argv[1:])\n"
    )
    wanted = "`mooncake.store`, served by Inlay. ['a', '-b']"
    shim = run("-m", PROGRAM, "--shim")
    assert run("told.py", "a", "-b", PYTHONPATH=shim) == wanted
    assert run("-m", PROGRAM, "told.py", "a", "-b") == wanted
    assert run("-m", PROGRAM, "-m", "told", "a", "-b") == wanted
    assert "usage" in run("-m", PROGRAM, "--help")


def test_the_shim_is_a_distribution() -> None:
    shim = ROOT / "src" / "inlay" / "connect" / "mooncake" / "shim"
    project = tomllib.loads((shim / "pyproject.toml").read_text())
    for name, place in project["project"]["scripts"].items():
        module, function = place.split(":")
        assert callable(getattr(importlib.import_module(module), function)), name
    assert project["tool"]["setuptools"]["packages"] == ["mooncake"]
