"""`inlay store ...` as a user types it."""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from inlay.serve.commands import store_objects
from inlay.store import ObjectStat, Store
from tests.support.directories import free_port
from tests.support.store import StoreProcess, close_all, inlay

NAME = f"cli-{os.getpid()}"


class RunningStore:
    """A master and a node, and commands that ask them."""

    def __init__(self, folder: Path) -> None:
        self.token = folder / "token"
        self.token.touch(mode=0o600)
        self.token.write_bytes(os.urandom(32))
        self.address = f"127.0.0.1:{free_port()}"
        self.master = self.start(folder, "master", "--listen", self.address, "--admin", "none")
        self.master.wait_for("master at")
        self.node = self.start(
            folder,
            "node",
            "--master",
            self.address,
            "--name",
            NAME,
            "--memory",
            "64MiB",
            "--forget",
        )
        self.node.wait_for("objects found")

    def start(self, folder: Path, *args: str) -> StoreProcess:
        return StoreProcess(folder, *args, "--token-file", str(self.token))

    def run(self, *args: str, stdin: bytes = b"") -> tuple[int, bytes, str]:
        """Exit code, output and errors of `inlay store ...`."""
        done = inlay(
            "store", *args, "--master", self.address, "--token-file", str(self.token), stdin=stdin
        )
        return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningStore]:
    made = RunningStore(tmp_path_factory.mktemp("store"))
    yield made
    close_all([made.master, made.node])


def test_objects_are_put_read_explained_and_removed(store: RunningStore, tmp_path: Path) -> None:
    value = os.urandom(100_000)
    (tmp_path / "value").write_bytes(value)
    code, out, _ = store.run("put", "a/1", str(tmp_path / "value"))
    assert code == 0 and out.startswith(b"a/1: 97.7 KiB, generation ")
    assert store.run("put", "a/2", stdin=b"from stdin")[0] == 0
    assert store.run("get", "a/2") == (0, b"from stdin", "")
    assert store.run("get", "a/1", "-o", str(tmp_path / "copy"))[0] == 0
    assert (tmp_path / "copy").read_bytes() == value
    assert b"kept as it was" in store.run("put", "a/2", stdin=b"other")[1]
    assert store.run("get", "a/2")[1] == b"from stdin"
    assert store.run("put", "a/2", "--if-exists", "replace", stdin=b"")[0] == 0
    assert store.run("get", "a/2") == (0, b"", "")
    assert b"on 1 of 2 nodes" in store.run("put", "a/3", "--replicas", "2", stdin=b"3")[1]
    code, _, err = store.run("put", "a/4", "--durability", "disk", stdin=b"4")
    assert code == 1 and "disk" in err
    code, _, err = store.run("put", "a/2", "--if-exists", "error", stdin=b"x")
    assert code == 1 and "there is an object" in err
    code, out, _ = store.run("explain", "a/1")
    assert code == 0 and NAME.encode() in out
    assert store.run("rm", "a/1")[0] == 0
    code, _, err = store.run("rm", "a/1", "a/2")
    assert code == 1 and "a/1: there is no such object" in err and "a/2" not in err
    code, out, err = store.run("get", "a/1", "-o", str(tmp_path / "none"))
    assert code == 1 and out == b"" and "there is no object 'a/1'" in err
    assert not (tmp_path / "none").exists()
    assert store.run("put", "p/1", stdin=b"1")[0] == store.run("put", "p/2", stdin=b"2")[0] == 0
    assert store.run("rm", "--prefix", "p/")[1] == b"2 removed\n"
    code, _, err = store.run("rm", "--prefix", "")
    assert code == 2 and "--all" in err and store.run("get", "a/3")[0] == 0
    assert store.run("rm", "--all")[0] == 0 and store.run("get", "a/3")[0] == 1


def test_status_in_both_forms(store: RunningStore) -> None:
    code, out, _ = store.run("status", "--json")
    found = json.loads(out)
    assert code == 0 and found["master"] == store.address and found["epoch"] == 1
    (node,) = found["nodes"]
    assert (node["name"], node["memory_bytes"], node["ready"]) == (NAME, 64 << 20, True)
    code, out, _ = store.run("status", "--once")
    assert code == 0 and NAME in out.decode() and "epoch 1" in out.decode()


class _Removing(Store):
    """Somebody removes what was put before it is asked about."""

    def stat(self, key: str | bytes, *, timeout_s: float | None = None) -> ObjectStat:
        self.remove(key)
        return super().stat(key, timeout_s=timeout_s)


def test_a_put_whose_object_is_gone_at_once_was_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "value").write_bytes(b"value")
    monkeypatch.setattr(store_objects, "_store", lambda *_: _Removing.embedded(memory="2MiB"))
    store_objects.store_put("k", str(tmp_path / "value"), replicas=2)
    assert "k: 5 B, evicted or removed since, generation " in capsys.readouterr().out


def test_errors_name_the_values_and_the_remedy(store: RunningStore, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    began = time.monotonic()
    done = inlay("store", "get", "k", "--master", nobody, "--timeout", "1")
    assert done.returncode == 1 and nobody in done.stderr.decode()
    assert time.monotonic() - began < 20
    wrong = tmp_path / "wrong"
    wrong.touch(mode=0o600)
    wrong.write_bytes(b"w" * 32)
    done = inlay(
        "store", "get", "k", "--master", store.address, "--token-file", str(wrong), "--timeout", "2"
    )
    assert done.returncode == 1 and "another token" in done.stderr.decode()
    code, _, err = store.run("drain", "nobody")
    assert code == 2 and f"no node 'nobody'; there are: {NAME}" in err
    code, _, err = store.run("get", "x" * 1025)
    assert code == 1 and "1024" in err
    done = inlay("store", "get", "k", "--master", f"{'x' * 64}:1", "--timeout", "1")
    assert done.returncode == 1 and "names no host" in done.stderr.decode()
    done = inlay("store", "get", "k", "--master", "http://x/y")
    assert done.returncode == 2 and "names no etcd" in done.stderr.decode()
    done = inlay("store", "master", "--listen", store.address, "--admin", "none")
    assert done.returncode == 1 and "is in use" in done.stderr.decode()
    done = inlay("store", "master", "--admin", "0.0.0.0:0", "--listen", "127.0.0.1:0")
    assert done.returncode == 2 and "--api-key" in done.stderr.decode()
    for process in ("master", "node"):
        done = inlay("store", process, "--listen", "127.0.0.1:0", "--api-key", "")
        assert done.returncode == 2 and "api_key is empty" in done.stderr.decode()
    done = inlay("store", "master", "--set", "node_timeout_s=0", "--listen", "127.0.0.1:0")
    assert done.returncode == 2 and "node_timeout_s is 0" in done.stderr.decode()
    done = inlay("store", "master", "--set", "eviction=fifo", "--listen", "127.0.0.1:0")
    assert done.returncode == 2 and "s3fifo" in done.stderr.decode()
    code, _, err = store.run("node", "--name", NAME, "--memory", "8MiB", "--timeout", "2")
    assert code == 1 and "another name" in err.splitlines()[-1]
    assert f"node '{NAME}' waits: the master at {store.address}" in err.splitlines()[0]
    for name in ("", "a/b", ".a"):
        done = inlay("store", "node", "--name", name, "--master", nobody)
        assert done.returncode == 2 and f"--name is {name!r}" in done.stderr.decode()


def test_a_node_leaves_when_it_is_told_to(store: RunningStore, tmp_path: Path) -> None:
    other = f"{NAME}-other"
    node = store.start(
        tmp_path, "node", "--master", store.address, "--name", other, "--memory", "8MiB", "--forget"
    )
    try:
        node.wait_for("objects found")
        assert node.stop() == 0
        assert f"node {other} left" in node.log
        nodes = json.loads(store.run("status", "--json")[1])["nodes"]
        assert {one["name"] for one in nodes if one["ready"]} == {NAME}
    finally:
        node.close()


def test_the_bench_starts_a_store_and_measures_it(store: RunningStore) -> None:
    common = ("--sizes", "4KiB,1MiB", "--batches", "1,8", "--seconds", "0.05", "--memory", "64MiB")
    done = inlay("bench", "store", *common, "--json", timeout_s=120)
    assert done.returncode == 0, done.stderr.decode()
    points = json.loads(done.stdout)["points"]
    assert {(p["op"], p["value_bytes"], p["batch"]) for p in points} == {
        *(
            (op, size, batch)
            for op in ("put", "get")
            for size in (4096, 1 << 20)
            for batch in (1, 8)
        ),
        ("exists", 0, 1),
        ("exists", 0, 8),
    }
    assert all(p["calls"] >= 2 and p["keys_per_s"] > 0 for p in points)
    done = inlay(
        "bench", "store", store.address, "--token-file", str(store.token), "--op", "get",
        "--sizes", "4KiB", "--batches", "1", "--seconds", "0.05",
    )  # fmt: skip
    assert done.returncode == 0 and re.search(r"get .*4\.0 KiB", done.stdout.decode())
    assert json.loads(store.run("status", "--json")[1])["objects"] == 0
