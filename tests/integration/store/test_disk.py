"""A disk behind the memory of nodes: what it brings back, after what, and what it refuses."""

import os
import random
import re
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from inlay.core.errors import ArgumentError, ConfigError, KeyNotFound, ResourceError, StoreFull
from inlay.store import Contribution, Disk, PutOptions, Store
from inlay.store.administration import Administration
from tests.integration.store.test_master import eventually
from tests.support.directories import free_port
from tests.support.store import StoreProcess

Start = Callable[..., StoreProcess]
MASTER = r"master at (\S+), epoch (\d+)"
PLAIN = PutOptions()
DURABLE = PutOptions(durability="disk")
LOG = "objects.log"


def make(count: int, size: int, seed: int = 0) -> dict[str, bytes]:
    draw = random.Random(seed)
    return {f"key-{seed}-{n}": draw.randbytes(size) for n in range(count)}


def put(store: Store, objects: dict[str, bytes], options: PutOptions = PLAIN) -> None:
    store.put_many(list(objects), list(objects.values()), options)


def read(store: Store, objects: dict[str, bytes]) -> list[str]:
    """Keys that are found; their values are right."""
    values = store.get_many(list(objects), timeout_s=20)
    found = []
    for (key, expected), value in zip(objects.items(), values, strict=True):
        if value is not None:
            assert value == expected, key
            found.append(key)
    return found


def test_what_memory_has_no_room_for_comes_back_from_the_disk(tmp_path: Path) -> None:
    objects = make(120, 100_000)
    with Store.embedded(memory="4MiB", disk=Disk(tmp_path / "d", "64MiB")) as store:
        for some in range(0, 120, 10):
            put(store, dict(list(objects.items())[some : some + 10]))
            time.sleep(0.01)  # the disk keeps up
        tiers = [store.stat(key).tier for key in objects if store.exists(key)]
        assert tiers.count("disk") > 30
        # More than the memory holds, in one call.
        found = read(store, objects)
        assert len(found) > 60
        assert store.exists_many(list(objects)).count(True) == len(found)
        store.remove_many(found[:20])
        assert read(store, objects) == found[20:]
    with Store.embedded(memory="4MiB", disk=Disk(tmp_path / "d", "64MiB")) as store:
        again = read(store, objects)
        assert not set(again) & set(found[:20])
        assert len(again) > 30


def test_what_is_durable_is_there_after_a_restart(tmp_path: Path) -> None:
    small, large = make(50, 1000, 1), make(2, 3_000_000, 2)
    disk = Disk(tmp_path / "d", "256MiB")
    with Store.embedded(memory="32MiB", disk=disk) as store:
        put(store, small, DURABLE)
        put(store, large, DURABLE)
        put(store, {"kept": b"first"}, PutOptions(soft_pin=True, group="g", durability="disk"))
        # What is there already is brought to the disk, too.
        store.put("later", b"value")
        assert not store.put("later", b"other", DURABLE).stored
        for value in (b"1", b"2", b"3"):
            store.upsert("changes", value, DURABLE)
        store.put("removed", b"x", DURABLE)
        store.remove("removed")
        store.upsert("gone", b"x", DURABLE)
        store.upsert("gone", b"y")
        stat = store.stat("changes")
        assert {tier for _, tier in stat.replicas} == {"memory", "disk"}
        with pytest.raises(ArgumentError, match="another node's"):
            Store.embedded(memory="2MiB", disk=disk)
    for _ in range(2):
        with Store.embedded(memory="32MiB", disk=disk) as store:
            assert store.adopted_objects == len(small) + len(large) + 3
            assert store.stat("kept").tier == "disk"
            assert store.get("changes") == b"3"
            assert store.get("later") == b"value"
            assert store.get_or_none("removed") is None
            # Its last value was in memory alone, which the one before must not outlive.
            assert store.get_or_none("gone") is None
            assert len(read(store, small)) == len(small)
            assert len(read(store, large)) == len(large)
            kept = store.stat("kept")
            assert kept.soft_pin and kept.tier == "disk"
    with Store.embedded(memory="32MiB", disk=disk) as store:
        # Later than all that was found.
        before = store.stat("changes").generation
        assert store.upsert("changes", b"4", DURABLE).generation > before
        assert store.remove_group("g") == 1
    with Store.embedded(memory="32MiB", disk=disk) as store:
        assert store.get("changes") == b"4"
        assert store.get_or_none("kept") is None
        with pytest.raises(KeyNotFound):
            store.get("kept")


def test_a_full_disk_gives_up_what_it_got_first(tmp_path: Path) -> None:
    with Store.embedded(memory="16MiB", disk=Disk(tmp_path / "d", "8MiB")) as store:
        store.put("pinned", b"p" * 1000, PutOptions(hard_pin=True, durability="disk"))
        objects = make(280, 100_000)
        for some in range(0, 280, 20):
            few = dict(list(objects.items())[some : some + 20])
            put(store, few, DURABLE if some % 40 else PLAIN)
        newest = list(objects)[-20:]
        assert len(read(store, {key: objects[key] for key in newest})) == 20
        read(store, objects)
        with pytest.raises(StoreFull, match="in memory alone"):
            store.put("too large for it", bytes(700_000), DURABLE)
        assert store.get("too large for it") == bytes(700_000)
    with Store.embedded(memory="16MiB", disk=Disk(tmp_path / "d", "8MiB")) as store:
        assert store.get("pinned") == b"p" * 1000
        assert 0 < len(read(store, objects)) < 80
        assert (tmp_path / "d" / LOG).stat().st_size <= 8 << 20


@pytest.mark.parametrize("damage", ["flipped", "truncated", "emptied"])
def test_a_damaged_file_gives_no_wrong_bytes(tmp_path: Path, damage: str) -> None:
    disk = Disk(tmp_path / "d", "16MiB")
    objects = make(60, 50_000)
    with Store.embedded(memory="16MiB", disk=disk) as store:
        put(store, objects, DURABLE)
        for n in range(20):
            store.upsert(f"changes-{n}", b"old" * 100, DURABLE)
    with Store.embedded(memory="16MiB", disk=disk) as store:
        for n in range(20):
            store.upsert(f"changes-{n}", b"new" * 100, DURABLE)
    log = tmp_path / "d" / LOG
    content = bytearray(log.read_bytes())
    if damage == "flipped":
        used = content.rindex(b"new" * 100)
        for at in random.Random(7).sample(range(8192, used), 40):
            content[at] ^= 1
        log.write_bytes(content)
    else:
        os.truncate(log, 0 if damage == "emptied" else len(content) // 9)
    with Store.embedded(memory="16MiB", disk=disk) as store:
        found = read(store, objects)
        for n in range(20):
            assert store.get_or_none(f"changes-{n}") in (b"new" * 100, None)
        assert len(found) < len(objects)
        assert (len(found) > 0) == (damage != "emptied")
        put(store, objects, DURABLE)
        assert len(read(store, objects)) == len(objects)


def test_damage_while_it_runs_is_found_out(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "d", "64MiB")
    objects = make(40, 50_000)
    with Store.embedded(memory="8MiB", disk=disk) as store:
        put(store, objects, DURABLE)
    with Store.embedded(memory="8MiB", disk=disk) as store:
        log = tmp_path / "d" / LOG
        content = log.read_bytes()
        with log.open("r+b") as file:
            for key in list(objects)[:10]:
                file.seek(content.index(objects[key][1000:1100]))
                file.write(b"\0" * 100)
        os.truncate(log, content.index(objects["key-0-35"]))
        found = read(store, objects)
        assert 0 < len(found) <= 30
        lost = sorted(set(objects) - set(found))
        assert not any(store.exists_many(lost))
        put(store, objects, DURABLE)
        assert len(read(store, objects)) == len(objects)
    with Store.embedded(memory="8MiB", disk=disk) as store:
        # What was cut off says where the others are.
        assert set(read(store, objects)) >= set(lost)


def test_a_node_process_finds_what_its_disk_has(start: Start, token: bytes, tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    master = ("master", "--listen", listen, "--admin", "none")
    first_master = start(*master)
    first_master.wait_for(MASTER)
    name = f"disk-{os.getpid()}"
    node = ("node", "--master", listen, "--name", name, "--memory", "16MiB", "--forget")
    node += ("--disk", f"{tmp_path}/d:256MiB", "--metrics", f"127.0.0.1:{free_port()}")
    first = start(*node)
    first.wait_for("0 objects found")
    objects = make(60, 100_000)
    with Store.connect(listen, token=token) as store:
        put(store, objects, DURABLE)
        store.upsert("changes", b"1", DURABLE)
        with Administration(listen, token) as administration:
            eventually(lambda: administration.survey().nodes[0].disk_used_bytes > 60 * 100_000)
            assert administration.survey().nodes[0].disk_bytes == 256 << 20
            assert "on its disk" in administration.explain("changes")
        url = first.wait_for(r"metrics at (\S+)")[1]
        with urllib.request.urlopen(url, timeout=10) as answer:
            told = answer.read().decode()
        assert f'inlay_store_disk_objects{{node="{name}"}} 61.0' in told
        assert f'inlay_store_node_ready{{node="{name}"}} 1.0' in told
        assert f'inlay_store_disk_seconds_count{{node="{name}",op="write"}}' in told
        first.kill()
        second = start(*node)
        second.wait_for(r"6\d objects found")
        assert len(read(store, objects)) == len(objects)
        assert store.get("changes") == b"1"
        # The master, too, and then the node while there is none.
        first_master.kill()
        second.kill()
        start(*master).wait_for(MASTER)
        third = start(*node)
        third.wait_for(r"6\d objects found")
        assert len(read(store, objects)) == len(objects)
        assert store.get("changes", timeout_s=20) == b"1"
        assert store.upsert("changes", b"2", DURABLE, timeout_s=20).stored
        contribution = Contribution(memory="64MiB", name=f"to-{os.getpid()}")
        with (
            Administration(listen, token) as administration,
            Store.connect(listen, token=token, contribute=contribution),
        ):
            administration.drain(name)
            third.wait_for("left, drained")
            assert third.wait() == 0
            assert len(read(store, objects)) == len(objects)
            assert store.get("changes") == b"2"
            assert {node for node, _ in store.stat("changes").replicas} == {f"to-{os.getpid()}"}


def test_a_disk_is_one_tenants_and_holds_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape("PATH:SIZE")):
        Disk.parse("/var/cache/inlay")
    with pytest.raises(ConfigError, match="at least"):
        Disk.parse("/var/cache/inlay:1KiB")
    assert Disk.parse("/a:b:2MiB") == Disk("/a:b", "2MiB")
    with pytest.raises(ArgumentError, match="at least"):
        Store.embedded(memory="2MiB", disk=Disk(tmp_path / "small", 1000))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / LOG).write_bytes(b"something else" * 1000)
    with pytest.raises(ArgumentError, match="something else"):
        Store.embedded(memory="2MiB", disk=Disk(tmp_path / "other", "8MiB"))
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((ArgumentError, ResourceError), match="file"):
        Store.embedded(memory="2MiB", disk=Disk(tmp_path / "file", "8MiB"))
    with Store.embedded(memory="2MiB", disk=Disk(tmp_path / "d", "8MiB")) as store:
        store.put("key", b"value", DURABLE)
    with pytest.raises(ArgumentError, match="at least so many"):
        Store.embedded(memory="2MiB", disk=Disk(tmp_path / "d", "4MiB"))
    with Store.embedded(memory="2MiB") as store, pytest.raises(StoreFull, match="have no disk"):
        store.put("key", b"value", DURABLE)
