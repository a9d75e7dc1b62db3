"""What Ray is asked for, and what is said where there is no Ray."""

import sys
from pathlib import Path

import pytest

from inlay.cluster.launch.launcher import ProcessSpec
from inlay.cluster.launch.ray import RayLauncher
from inlay.cluster.launch.ray_bundles import make_bundles
from inlay.core.errors import DeploymentError

HERE = "10.0.0.1"
MACHINES = {
    HERE: {"CPU": 8.0, f"node:{HERE}": 1.0},
    "10.0.0.2": {"CPU": 16.0, "GPU": 2.0, "node:10.0.0.2": 1.0},
}


def spec(name: str, **fields: object) -> ProcessSpec:
    return ProcessSpec(name=name, kind="instance", module="m", setup={}, **fields)  # type: ignore[arg-type]


def test_each_process_has_a_bundle_on_its_machine() -> None:
    specs = [
        spec("a", num_cpus=4),
        spec("b", host="10.0.0.2", num_cpus=2, num_gpus=2),
        spec("c", host="127.0.0.1"),
    ]
    assert make_bundles(specs, MACHINES, HERE) == [
        {"node:10.0.0.1": 0.001, "CPU": 4.0},
        {"node:10.0.0.2": 0.001, "CPU": 2.0, "GPU": 2.0},
        {"node:10.0.0.1": 0.001},
    ]


def test_a_machine_that_ray_has_not() -> None:
    with pytest.raises(
        DeploymentError, match=r"a is to run on 10\.0\.0\.3, .* one of 10\.0\.0\.1, 10\.0\.0\.2"
    ):
        make_bundles([spec("a", host="10.0.0.3")], MACHINES, HERE)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"num_cpus": 5}, "10.0.0.1 needs 10 CPUs, and Ray has 8 there"),
        ({"num_gpus": 1}, "10.0.0.1 needs 2 GPUs, and Ray has 0 there.*--num-gpus"),
    ],
)
def test_a_machine_that_is_too_small(asked: dict[str, int], message: str) -> None:
    with pytest.raises(DeploymentError, match=message):
        make_bundles([spec("a", **asked), spec("b", **asked)], MACHINES, HERE)


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DeploymentError, match=r'pip install "inlay\[cluster\]"'):
        RayLauncher(tmp_path, [])


def test_addresses_of_clients_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(DeploymentError, match="RAY_ADDRESS is ray://10.0.0.1:10001: run inlay up"):
        RayLauncher(tmp_path, [])
