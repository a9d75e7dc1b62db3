"""Masters in processes of their own: restarts, standbys, sleep, administration."""

import json
import os
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import StoreError, StoreRefused, StoreUnavailable
from inlay.store import Contribution, PutOptions, Store
from inlay.store.administration import Administration
from tests.support.directories import Service, free_port, missing_program, running
from tests.support.store import StoreProcess

Start = Callable[..., StoreProcess]
MASTER = r"master at (\S+), epoch (\d+)"
BACK_S = 5.0


def eventually(condition: Callable[[], Any], timeout_s: float = 15.0) -> float:
    """Wait for it; how long it took."""
    began = time.monotonic()
    while True:
        try:
            if condition():
                return time.monotonic() - began
        except StoreError:
            pass
        assert time.monotonic() < began + timeout_s
        time.sleep(0.02)


def ask(url: str, key: str | None = None) -> Any:
    """A body, as JSON where it is."""
    request = urllib.request.Request(url)
    if key is not None:
        request.add_header("Authorization", f"Bearer {key}")
    with urllib.request.urlopen(request, timeout=10) as answer:
        body = answer.read()
        kind = answer.headers["Content-Type"] or ""
    return json.loads(body) if "json" in kind else body.decode()


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Service]:
    if reason := missing_program("etcd"):
        pytest.skip(reason)
    with running("etcd", tmp_path) as service:
        yield service


def fill(store: Store, count: int = 200) -> dict[str, bytes]:
    objects = {f"key-{n}": os.urandom(n * 37) for n in range(count)}
    store.put_many(list(objects), list(objects.values()))
    return objects


def test_a_killed_master_comes_back_with_every_object(start: Start, token: bytes) -> None:
    listen = f"127.0.0.1:{free_port()}"
    first = start("master", "--listen", listen, "--admin", "none")
    assert first.wait_for(MASTER)[2] == "1"
    with Store.connect(
        listen, token=token, contribute=Contribution(memory="32MiB", name=f"n-{os.getpid()}")
    ) as store:
        objects = fill(store)
        first.kill()
        second = start("master", "--listen", listen, "--admin", "none")
        assert second.wait_for(MASTER)[2] == "2"
        values = store.get_many(list(objects), timeout_s=20)
        assert dict(zip(objects, values, strict=True)) == objects
        assert eventually(lambda: store.put("later", b"x", timeout_s=1)) < 10
        assert second.stop() == 0


@pytest.mark.parametrize("who", ["master", "node"])
def test_a_view_outlasts_its_object_and_restarts(start: Start, token: bytes, who: str) -> None:
    listen = f"127.0.0.1:{free_port()}"
    commands = {
        "master": ("master", "--listen", listen, "--admin", "none"),
        "node": (
            "node",
            "--master",
            listen,
            "--name",
            f"held-{who}-{os.getpid()}",
            "--memory",
            "16MiB",
        ),
    }
    processes = {name: start(*command) for name, command in commands.items()}
    processes["node"].wait_for("objects found")
    value = os.urandom(1 << 20)
    with Store.connect(listen, token=token) as store:
        store.put("held", value)
        with store.view("held") as view:
            store.remove("held")
            processes[who].kill()
            start(*commands[who])
            # More than there is room for, so that all of it was used again.
            for number in range(64):
                other = os.urandom(1 << 20)
                eventually(lambda n=number, o=other: store.put(f"other {n}", o, timeout_s=1))
            assert bytes(view) == value


def test_a_node_process_that_was_killed_finds_its_objects(start: Start, token: bytes) -> None:
    listen = f"127.0.0.1:{free_port()}"
    start("master", "--listen", listen, "--admin", "none").wait_for(MASTER)
    name = f"adopted-{os.getpid()}"
    node = ("node", "--master", listen, "--name", name, "--memory", "32MiB")
    first = start(*node)
    first.wait_for("0 objects found")
    with Store.connect(listen, token=token) as store:
        objects = fill(store)
        first.kill()
        second = start(*node)
        second.wait_for(f"{len(objects)} objects found")
        values = store.get_many(list(objects), timeout_s=20)
        assert dict(zip(objects, values, strict=True)) == objects
        with Administration(listen, token) as administration:
            administration.drain(name)
            # Nobody else has room: it stays, and says so.
            eventually(lambda: administration.drain(name).objects_stuck == len(objects))
            store.remove_many(list(objects))
            second.wait_for("left, drained")
        assert second.wait() == 0
    assert not Path(f"/dev/shm/inlay-{os.geteuid()}/store/{name}").exists()


def test_a_standby_takes_over_and_nothing_is_lost(
    start: Start, token: bytes, etcd: Service
) -> None:
    cluster = f"{etcd.url}/ha"
    first_at, standby_at = (f"127.0.0.1:{free_port()}" for _ in range(2))
    first = start("master", "--etcd", cluster, "--listen", first_at, "--admin", "none")
    first.wait_for(MASTER)
    standby = start("master", "--etcd", cluster, "--listen", standby_at, "--admin", "none")
    standby.wait_for("standby")
    with Store.connect(
        cluster, token=token, contribute=Contribution(memory="32MiB", name=f"ha-{os.getpid()}")
    ) as store:
        objects = fill(store)
        first.kill()
        back_s = eventually(lambda: store.put("after", b"x", timeout_s=0.5))
        found = standby.wait_for(MASTER)
        assert (found[1], found[2]) == (standby_at, "2")
        values = store.get_many(list(objects), timeout_s=20)
        assert dict(zip(objects, values, strict=True)) == objects
        assert back_s < BACK_S, back_s


def test_a_master_that_slept_beyond_its_lease_answers_nothing(
    start: Start, token: bytes, etcd: Service
) -> None:
    cluster = f"{etcd.url}/sleep"
    sleeper_at, other_at = (f"127.0.0.1:{free_port()}" for _ in range(2))
    sleeper = start("master", "--etcd", cluster, "--listen", sleeper_at, "--admin", "none")
    sleeper.wait_for(MASTER)
    other = start("master", "--etcd", cluster, "--listen", other_at, "--admin", "none")
    other.wait_for("standby")
    replace = PutOptions(if_exists="replace")
    with (
        Store.connect(
            cluster, token=token, contribute=Contribution(memory="32MiB", name=f"s-{os.getpid()}")
        ) as store,
        Store.connect(sleeper_at, token=token) as stale,
    ):
        store.put("key", b"old", replace)
        assert stale.get("key") == b"old"
        sleeper.pause()
        other.wait_for(MASTER)
        eventually(lambda: store.put("key", b"new", replace, timeout_s=0.5))
        sleeper.go_on()
        # Its client asks it the moment it wakes: it may not say that "stale" is stored.
        with pytest.raises(StoreError):
            stale.put("key", b"stale", replace, timeout_s=1.5)
        assert store.get("key") == b"new"
        sleeper.wait_for("master no more")


def test_ctrl_c_ends_a_call_that_waits_for_the_master(start: Start, token: bytes) -> None:
    listen = f"127.0.0.1:{free_port()}"
    master = start("master", "--listen", listen, "--admin", "none")
    master.wait_for(MASTER)
    with Store.connect(listen, token=token) as store:
        master.pause()
        presser = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):  # at its own end the call raises another error
            presser.start()
            store.exists("key", timeout_s=60)
        presser.join()
        master.go_on()
        assert not store.exists("key", timeout_s=20)


def test_nodes_that_left_are_told_of_no_more(start: Start, token: bytes) -> None:
    listen = f"127.0.0.1:{free_port()}"
    start("master", "--listen", listen, "--admin", "none").wait_for(MASTER)
    mine = Contribution(memory="4MiB", name=f"l-{os.getpid()}")
    with Administration(listen, token) as administration:
        with Store.connect(listen, token=token, contribute=mine):
            assert [node.name for node in administration.survey().nodes] == [mine.name]
        assert not administration.survey().nodes


def test_without_etcd_a_master_that_is_behind_its_nodes_begins_above_them(
    start: Start, token: bytes, tmp_path: Path
) -> None:
    listen = f"127.0.0.1:{free_port()}"
    state = tmp_path / "epoch.json"
    state.write_text('{"epoch": 40, "nodes": []}')
    command = ("master", "--listen", listen, "--admin", "none", "--state", str(state))
    first = start(*command)
    assert first.wait_for(MASTER)[2] == "41"
    with Store.connect(
        listen, token=token, contribute=Contribution(memory="32MiB", name=f"e-{os.getpid()}")
    ) as store:
        objects = fill(store, 20)
        first.kill()
        state.unlink()
        second = start(*command)
        second.wait_for(r"master at \S+, epoch 42")
        values = store.get_many(list(objects), timeout_s=20)
        assert dict(zip(objects, values, strict=True)) == objects


def test_what_is_stored_is_told_over_http(start: Start, token: bytes) -> None:
    admin = f"127.0.0.1:{free_port()}"
    master = start("master", "--listen", "127.0.0.1:0", "--admin", admin, "--api-key", "secret")
    listen = master.wait_for(MASTER)[1]
    name = f"h-{os.getpid()}"
    with Store.connect(
        listen, token=token, contribute=Contribution(memory="32MiB", name=name)
    ) as store:
        for number in range(30):
            store.put(f"a/{number}", b"x" * 100)
        store.put("b/1", b"")
        url = f"http://{admin}"
        assert ask(f"{url}/health") == ""
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{url}/objects")
        role = ask(f"{url}/role", "secret")
        assert (role["role"], role["master"], role["epoch"]) == ("master", listen, 1)
        keys: list[str] = []
        cursor = 0
        while True:
            found = ask(f"{url}/objects?prefix=a/&limit=7&cursor={cursor}", "secret")
            keys += found["keys"]
            cursor = found["cursor"]
            if cursor == 0:
                break
        assert sorted(keys) == sorted(f"a/{number}" for number in range(30))
        (segment,) = ask(f"{url}/segments", "secret")["segments"]
        assert (segment["node"], segment["bytes"], segment["ready"]) == (name, 32 << 20, True)
        (node,) = ask(f"{url}/nodes", "secret")["nodes"]
        assert (node["name"], node["ready"]) == (name, True)
        assert name in ask(f"{url}/explain?key=b/1", "secret")
        metrics = ask(f"{url}/metrics", "secret")
        assert "inlay_store_objects 31.0" in metrics
        assert f'inlay_store_node_ready{{node="{name}"}} 1.0' in metrics
        for path in ("/explain", "/objects?limit=0", "/objects?cursor=x", "/objects?tenant=no"):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                ask(f"{url}{path}", "secret")
    assert master.stop() == 0


def test_a_standby_says_who_is_master(start: Start, etcd: Service) -> None:
    cluster, admin = f"{etcd.url}/roles", f"127.0.0.1:{free_port()}"
    listen = f"127.0.0.1:{free_port()}"
    start("master", "--etcd", cluster, "--listen", listen, "--admin", "none").wait_for(MASTER)
    standby = start(
        "master", "--etcd", cluster, "--listen", f"127.0.0.1:{free_port()}", "--admin", admin
    )
    standby.wait_for("standby")
    role = ask(f"http://{admin}/role")
    assert (role["role"], role["master"], role["epoch"]) == ("standby", listen, 1)
    assert 'inlay_store_role{role="standby"} 1.0' in ask(f"http://{admin}/metrics")
    assert ask(f"http://{admin}/health") == ""
    with pytest.raises(urllib.error.HTTPError, match="503"):
        ask(f"http://{admin}/objects")


def test_a_read_of_what_was_replaced_is_counted_as_tried_again(start: Start, token: bytes) -> None:
    listen = start("master", "--listen", "127.0.0.1:0", "--admin", "none").wait_for(MASTER)[1]
    mine = Contribution(memory="8MiB", name=f"again-{os.getpid()}")
    with (
        Store.connect(listen, token=token, contribute=mine) as writer,
        Store.connect(listen, token=token) as reader,
    ):
        writer.put("key", b"old")
        assert [reader.get("key"), reader.get("key")] == [b"old", b"old"]
        before = reader.figures()
        assert (before.read, before.known, before.asked, before.again) == (2, 1, 1, 0)
        # Not seldom: the location that the reader knows may have grown old meanwhile.
        for _ in range(20):  # what the reader knows may be too old to be used
            writer.upsert("key", b"new")
            assert reader.get("key") == b"new"
        assert reader.figures().again > 0 and reader.figures().asked > before.asked


def test_tenants_see_their_own_alone(start: Start, tmp_path: Path) -> None:
    tokens = {name: os.urandom(32) for name in ("team-a", "team-b")}
    lines = []
    for name, secret in tokens.items():
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_bytes(secret)
        lines.append(f'{name} = "{name}"\n')
    table = tmp_path / "tenants.toml"
    table.touch(mode=0o600)
    table.write_text("".join(lines))
    master = StoreProcess(
        tmp_path, "master", "--listen", "127.0.0.1:0", "--admin", "none", "--tenants", str(table)
    )
    try:
        listen = master.wait_for(MASTER)[1]
        mine = Contribution(memory="8MiB", name=f"t-{os.getpid()}", tenant="team-a")
        with (
            Store.connect(listen, token=tokens["team-a"], contribute=mine) as a,
            Store.connect(listen, token=tokens["team-b"]) as b,
        ):
            a.put("key", b"of a")
            assert b.get_or_none("key") is None and not b.exists("key")
        with pytest.raises(StoreRefused, match="another token"):
            Store.connect(listen, token=os.urandom(32), timeout_s=2)
    finally:
        master.close()


def test_a_cluster_without_a_master_is_said(etcd: Service, token: bytes) -> None:
    with pytest.raises(StoreUnavailable, match="has no master: start one with inlay store master"):
        Store.connect(f"{etcd.url}/nobody", token=token, timeout_s=0.5)
    dead = f"etcd://127.0.0.1:{free_port()}/x"
    with pytest.raises(StoreUnavailable, match="no master can be found: .*does not answer"):
        Store.connect(dead, token=token, timeout_s=0.5)
