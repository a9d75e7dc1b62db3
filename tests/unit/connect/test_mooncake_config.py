"""Configuration and flags, as Mooncake's users write them."""

import json
from pathlib import Path
from typing import Any

import pytest

from inlay.connect.mooncake import MooncakeConfig
from inlay.connect.mooncake.config import (
    client_ports,
    parse_bool,
    parse_size,
    transfer_timeout_s,
    transports,
)
from inlay.connect.mooncake.flags import parse_flags
from inlay.connect.mooncake.master import (
    IDLE,
    INSTEAD,
    KNOWN,
    duration_s,
    store_arguments,
)
from inlay.connect.mooncake.membership import check_metadata_server, membership
from inlay.core.errors import ConfigError

MINIMUM = {
    "local_hostname": "here",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "there:50051",
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("MOONCAKE_", "MC_")):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16MB", 16 << 20),
        ("4 GB", 4 << 30),
        ("1.5k", 1536),
        ("100", 100),
        (7, 7),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["50%", "", "mb", "-1", "1 pb"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)


def test_truth_values() -> None:
    assert [parse_bool(value) for value in (True, "Yes", 1, "on")] == [True] * 4
    assert [parse_bool(value) for value in (False, "No", 0, "", None)] == [False] * 5
    with pytest.raises(ConfigError, match="no truth value"):
        parse_bool("maybe")


def test_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mooncake.json"
    file.write_text(json.dumps({**MINIMUM, "global_segment_size": "1gb", "protocol": "RDMA"}))
    config = MooncakeConfig.from_file(str(file))
    assert (config.global_segment_size, config.local_buffer_size) == (1 << 30, 1 << 30)
    assert config.protocol == "rdma"
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))
    assert MooncakeConfig.load_from_env() == config
    file.write_text(json.dumps({"local_hostname": "here"}))
    with pytest.raises(ValueError, match="lacks 'metadata_server'"):
        MooncakeConfig.load_from_env()


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "there:50051")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "2gb")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_ENABLED", "true")
    config = MooncakeConfig.load_from_env()
    assert (config.local_hostname, config.metadata_server) == ("localhost", "P2PHANDSHAKE")
    assert config.global_segment_size == 2 << 30 and config.enable_ssd_offload


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"local_hostname": " "}, "local_hostname must be a text"),
        ({"protocol": ""}, "protocol must be a text"),
        ({"global_segment_size": -1}, "global_segment_size must be at least 0"),
    ],
)
def test_what_no_configuration_can_have(change: dict[str, Any], says: str) -> None:
    values: dict[str, Any] = {
        **MINIMUM,
        "global_segment_size": 0,
        "local_buffer_size": 0,
        "protocol": "tcp",
        "device_name": None,
    }
    with pytest.raises(ConfigError, match=says):
        MooncakeConfig(**(values | change))


def test_ports_and_times(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_ports() == (12300, 14300) and transfer_timeout_s() == 30
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", "200")
    monkeypatch.setenv("MC_STORE_CLIENT_MAX_PORT", "100")
    with pytest.raises(ConfigError, match="MC_STORE_CLIENT_MIN_PORT is 200"):
        client_ports()
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "1")
    assert transfer_timeout_s() == 5
    assert transports() is None
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    assert transports() == ("tcp",)


@pytest.mark.parametrize(
    ("text", "directory"),
    [
        ("P2PHANDSHAKE", None),
        ("http://h:8080/metadata", "http://h:8080/metadata"),
        ("h:2379", "etcd://h:2379"),
        ("redis://h:6379", "redis://h:6379"),
    ],
)
def test_metadata_servers(text: str, directory: str | None) -> None:
    assert check_metadata_server(text) == directory


def test_hostnames_may_have_ports(tmp_path: Path) -> None:
    def of(hostname: str, memory: int = 1) -> Any:
        return membership(
            hostname, "P2PHANDSHAKE", memory, "tcp", "a:1;b:2", str(tmp_path), "default"
        )

    assert (of("h").hostname, of("h").port) == ("h", None)
    assert (of("h:17").hostname, of("h:17").port) == ("h", 17)
    assert of("h").master == "a:1,b:2"
    assert of("h").disk.size_bytes > 0 and of("h", 0).disk is None


def test_flags() -> None:
    known = {"name": "x", "switch": "false", "other": "true"}
    flags = parse_flags(
        ["--name=a=b", "-switch", "--noother", "--idle", "3", "--", "--more", "y"], known, ("idle",)
    )
    assert flags.values == {"name": "a=b", "switch": "true", "other": "false"}
    assert flags.idle == ("idle",) and flags.rest == ("--more", "y")
    assert flags.on("switch") and not flags.on("other")
    assert parse_flags(["--name", "v", "--switch=false"], known, ()).values["name"] == "v"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--unknown=1"], "no flag --unknown"),
        (["word"], "'word' is no flag"),
        (["--name"], "--name needs a value"),
        (["--name", "--switch"], "--name needs a value"),
    ],
)
def test_flags_that_cannot_be(words: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_flags(words, {"name": "x", "switch": "false"}, ())


@pytest.mark.parametrize(
    ("text", "seconds"), [("500", 0.5), ("500ms", 0.5), ("10s", 10), ("1.5m", 90), ("1h", 3600)]
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ([], ["--listen", "127.0.0.1:50051", "--admin", "127.0.0.1:9003"]),
        (
            ["--rpc_address=0.0.0.0", "--rpc_port=7", "--metrics_port=8"],
            ["--listen", "0.0.0.0:7", "--admin", "127.0.0.1:8"],
        ),
        (
            ["--default_kv_lease_ttl=5000", "--client_ttl=20"],
            ["--listen", "127.0.0.1:50051", "--admin", "127.0.0.1:9003",
             "--set", "location_ttl_s=5", "--set", "node_timeout_s=20"],
        ),
        (
            ["--eviction_high_watermark_ratio=0.9", "--eviction_ratio", "0.1"],
            ["--listen", "127.0.0.1:50051", "--admin", "127.0.0.1:9003",
             "--set", "high_watermark=0.9", "--set", "low_watermark=0.8"],
        ),
        (
            ["--enable_ha", "--etcd_endpoints=http://a:1;b:2", "--cluster_id=c",
             "--", "--api-key", "k"],
            ["--listen", "127.0.0.1:50051", "--admin", "127.0.0.1:9003",
             "--etcd", "etcd://a:1,b:2/c", "--api-key", "k"],
        ),
    ],
)  # fmt: skip
def test_flags_of_the_master(words: list[str], arguments: list[str]) -> None:
    assert store_arguments(parse_flags(words, KNOWN, IDLE)) == arguments


def test_flags_that_would_be_missed_are_refused() -> None:
    off = ["--enable_multi_tenants=false", "--noenable_kv_events", "--enable_snapshot", "--v=1"]
    assert parse_flags(off, KNOWN, IDLE, INSTEAD).idle == ("enable_snapshot", "v")
    with pytest.raises(ConfigError, match="--enable_multi_tenants has no effect here: .*--tenants"):
        parse_flags(["--enable_multi_tenants"], KNOWN, IDLE, INSTEAD)
    with pytest.raises(ConfigError, match="--root_fs_dir has no effect here"):
        parse_flags(["--root_fs_dir=/mnt/x"], KNOWN, IDLE, INSTEAD)


def test_help_lists_flags(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parse_flags(["--help"], KNOWN, IDLE)
    assert left.value.code == 0 and "--metrics_port=9003" in capsys.readouterr().out
