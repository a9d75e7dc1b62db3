"""What is started for a deployment's file."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from inlay.cluster.deployment_file import parse_deployment
from inlay.core.errors import AddressInUseError, ConfigError
from inlay.serve.cluster.cpus import divide_cpus
from inlay.serve.cluster.port import reserve_port
from inlay.serve.cluster.specs import DeploymentSpecs, check_settings
from inlay.serve.http_server import bind

TABLES = {
    "name": "demo",
    "instances": {
        "prefill": {"role": "prefill", "threads": 2, "engine": {"scheduler": {"max_running": 8}}},
        "decode": {"role": "decode", "count": 2, "device": "cpu"},
    },
    "engine": {"cache": {"memory": "64MiB"}},
    "dispatcher": {"api_key": "k", "serve": {"page": False, "cors_origins": ["*"]}},
    "store": {"nodes": {"n0": {"memory": "2MiB"}}},
    "slo": {"chat": {"ttft": "1s"}},
    "tenants": {"t": {"weight": 2}},
}


def make(tables: dict[str, object] = TABLES) -> DeploymentSpecs:
    return DeploymentSpecs(
        replace(parse_deployment(tables), secret="s3"),
        model="/models/m",
        model_name="m",
        port=8123,
        control="ipc:///x/control",
        state=Path("/state"),
    )


def test_all_processes_of_a_file() -> None:
    specs = make().all()
    assert [(spec.name, spec.kind, spec.role) for spec in specs] == [
        ("master-0", "master", ""),
        ("node-n0", "node", ""),
        ("prefill-0", "instance", "prefill"),
        ("decode-0", "instance", "decode"),
        ("decode-1", "instance", "decode"),
        ("dispatcher-0", "dispatcher", ""),
    ]
    for spec in specs:
        json.dumps(dict(spec.setup))  # plain data


def test_settings_of_an_instance() -> None:
    specs = make()
    master, *_ = specs.all()
    setup = specs.instance("prefill", 0).setup
    config = setup["config"]
    assert (config["model"], config["threads"], config["device"]) == ("/models/m", 2, "auto")
    assert config["scheduler"]["max_running"] == 8
    assert (config["cache"]["secret"], config["cache"]["memory"]) == ("s3", "64MiB")
    assert config["cache"]["store"] == master.setup["master"]["listen"]
    assert setup["instance"] == {
        "name": "prefill-0",
        "role": "prefill",
        "listen": "ipc:///x",
    }
    assert config["exchange"] == "127.0.0.1:0"
    assert specs.instance("decode", 4, "both").setup["instance"]["role"] == "both"


def test_settings_of_a_dispatcher() -> None:
    spec = make().all()[-1]
    setup = spec.setup
    assert spec.grace_s == 7  # requests have the 3 s of a server
    assert (setup["port"], setup["secret"], setup["control"]) == (8123, "s3", "ipc:///x/control")
    assert setup["serve"] == {
        "served_model_name": "m", "page": False, "cors_origins": ("*",), "api_key": "k"
    }  # fmt: skip
    assert setup["slo"] == {"chat": {"name": "chat", "ttft_s": 1.0, "priority": 0}}
    assert setup["tenants"] == {"t": {"weight": 2.0, "priority": 0}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"engine": {"schedule": {"x": 1}}},
            "d.toml: [engine] schedule: the configuration has no field 'schedule'. Did you mean "
            "scheduler?",
        ),
        (
            {"instances": {"all": {"engine": {"cache": {"page": 1}}}}},
            "d.toml: [instances.all.engine] cache.page: cache has no field 'page'. Did you mean "
            "cache.pages?",
        ),
        ({"engine": {"cache": {"page_tokens": 5000}}}, "[instances.prefill] engine: cache.page_to"),
        ({"dispatcher": {"serve": {"pge": True}}}, "[dispatcher.serve] pge: "),
        ({"dispatcher": {"serve": {"port": 1}}}, "[dispatcher.serve] port: write it in [dispatch"),
    ],
)
def test_settings_that_there_are_not(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_settings(parse_deployment({**TABLES, **change}), Path("d.toml"))
    assert words in str(caught.value)


def test_what_ray_sets_aside() -> None:
    """Of GPUs it says which, so that an instance takes the first of those that it sees."""
    decode = {"role": "decode", "count": 2, "device": ["cuda:0", "cuda:1"]}
    instances = {"prefill": {"role": "prefill", "threads": 3}, "decode": decode}
    specs = make({**TABLES, "launcher": "ray", "instances": instances})
    prefill, other = specs.instance("prefill", 0), specs.instance("decode", 1)
    assert (prefill.num_cpus, prefill.num_gpus, prefill.device) == (3, 0, "auto")
    assert (other.num_cpus, other.num_gpus, other.device) == (1, 1, "cuda")
    assert other.setup["config"]["device"] == "cuda"
    assert other.setup["instance"]["listen"] == "127.0.0.1:0"


def test_each_instance_has_its_cpus(tmp_path: Path) -> None:
    for cpu, core in enumerate((0, 1, 2, 3, 0, 1, 2, 3)):  # two of a core are 4 apart
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text("0")
        (topology / "core_id").write_text(str(core))
    allowed = range(8)
    assert divide_cpus(2, allowed=allowed, system=tmp_path) == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert divide_cpus(3, allowed=range(2), system=tmp_path) == [(0,), (1,), (0,)]
    sizes = [len(part) for part in divide_cpus(3, allowed=allowed, system=tmp_path)]
    assert sum(sizes) == 8 and max(sizes) - min(sizes) <= 1


def test_a_port_is_kept_for_those_that_share_it() -> None:
    with reserve_port("127.0.0.1", 0, key="[dispatcher] port") as held:
        port = held.getsockname()[1]
        with pytest.raises(AddressInUseError):
            bind("127.0.0.1", port)
        with pytest.raises(AddressInUseError, match=rf"with \[dispatcher\] port = {port + 1}"):
            reserve_port("127.0.0.1", port, key="[dispatcher] port")
