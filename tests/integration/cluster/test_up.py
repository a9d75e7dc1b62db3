"""A deployment with real processes: it starts, comes back, changes, and leaves nothing."""

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.deployments import (
    RunningDeployment,
    alive,
    inlay,
    running_deployment,
    wait_until,
)

FILE = """
name = "tested"
drain = "20s"

[engine]
device = "cpu"
threads = 1
max_context_tokens = 512
cache.memory = "16MiB"

[instances.all]
count = 2

[dispatcher]
port = 0

[store.nodes.n0]
memory = "8MiB"
"""
LEAST = """
name = "least"
[engine]
device = "cpu"
threads = 1
cache.memory = "16MiB"
[instances.all]
[dispatcher]
port = 0
"""
BACK_S = 60.0  # with a share of two cores; torch alone takes seconds to import


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
def deployment(folder: Path) -> Iterator[RunningDeployment]:
    with running_deployment(folder, FILE) as found:
        yield found


def answer(url: str) -> str:
    body = {"prompt": "A lantern", "max_tokens": 8, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def wait_back(deployment: RunningDeployment, name: str, run: int) -> None:
    def back() -> bool:
        one = deployment.processes()[name]
        return one.state == "ready" and one.run == run

    wait_until(back, BACK_S, f"{name} is back")


def test_everything_is_started_and_serves(deployment: RunningDeployment) -> None:
    assert answer(deployment.url)
    found = deployment.processes()
    assert list(found) == ["master-0", "node-n0", "all-0", "all-1", "dispatcher-0"]
    assert {one.state for one in found.values()} == {"ready"}
    assert all(alive(one.pid) and Path(one.log).exists() for one in found.values())
    assert found["all-0"].address.startswith("ipc://")
    told = json.loads(deployment.command("status", "--json"))["processes"]
    assert [(one["name"], one["pid"]) for one in told] == [(n, p.pid) for n, p in found.items()]
    table = deployment.command("status", "tested")
    assert f"tested serves the demo model at {deployment.url}" in table
    assert "all-1" in table and "ready" in table


def test_a_second_one_of_the_name_is_refused(deployment: RunningDeployment) -> None:
    for args in (("up", str(deployment.file)), ("up", "-d", str(deployment.file))):
        refused = inlay(deployment.folder, *args)
        assert refused.returncode == 1
        assert f"'tested' is running already (process {deployment.pid}, from" in refused.stderr


@pytest.mark.parametrize("name", ["all-0", "master-0"])
def test_what_is_killed_comes_back(deployment: RunningDeployment, name: str) -> None:
    """An instance and what is none; `test_faults.py` kills each kind."""
    before = answer(deployment.url)
    found = deployment.processes()[name]
    os.kill(found.pid, signal.SIGKILL)
    wait_until(lambda: not alive(found.pid), 5, "it is dead")
    wait_back(deployment, name, found.run + 1)
    assert f"{name} was killed by SIGKILL; it starts again in 0.1 s" in deployment.output
    assert answer(deployment.url) == before


def test_an_instance_has_another_role(deployment: RunningDeployment) -> None:
    assert deployment.command("role", "all-0", "decode") == "all-0: both -> decode\n"
    assert deployment.processes()["all-0"].role == "decode"
    assert answer(deployment.url)
    for args, words in (
        (("role", "all-1", "decode"), "no instance would be for prefill"),
        (("role", "all-1", "decod"), "decod is no role: write one of prefill, decode, both"),
    ):
        refused = inlay(deployment.folder, *args)
        assert refused.returncode in (1, 2) and words in refused.stderr
    assert deployment.command("role", "all-0", "both") == "all-0: decode -> both\n"


def test_scale_and_drain(deployment: RunningDeployment) -> None:
    assert deployment.command("scale", "all=3") == "all: 2 -> 3 instances\n"
    found = deployment.processes()
    assert (found["all-2"].state, found["all-2"].role) == ("ready", "both")
    assert deployment.command("drain", "all-0") == "all-0 is gone\n"
    wait_until(lambda: not alive(found["all-0"].pid), 5, "all-0 is gone")
    assert deployment.command("scale", "all=1", "--name", "tested") == "all: 2 -> 1 instances\n"
    assert [n for n in deployment.processes() if n.startswith("all")] == ["all-1"]
    assert answer(deployment.url)
    for args, words in (
        (("drain", "all-1"), "no instance would be for prefill"),
        (("scale", "al=1"), "there is no group 'al'"),
        (("scale", "all"), "write GROUP=COUNT"),
        (("status", "other"), "'other' is not running; running are tested"),
    ):
        refused = inlay(deployment.folder, *args)
        assert refused.returncode in (1, 2) and words in refused.stderr
    assert deployment.command("scale", "all=2") == "all: 1 -> 2 instances\n"


def test_down_stops_all(deployment: RunningDeployment) -> None:
    """The last test of the module's deployment."""
    pids = [one.pid for one in deployment.processes().values()]
    assert deployment.command("down") == "stopped\n"
    assert deployment.wait() == 0
    assert not any(alive(pid) for pid in pids)
    assert deployment.output.endswith("stopping tested\nstopped\n")
    refused = inlay(deployment.folder, "status")
    assert refused.returncode == 1 and "no deployment is running" in refused.stderr
    assert not list(Path("/dev/shm").rglob("*tested.n0*"))


def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    deployment = RunningDeployment(tmp_path, LEAST).wait_ready()
    pids = [one.pid for one in deployment.processes().values()]
    deployment.signal(signal.SIGKILL)
    assert deployment.wait() == -signal.SIGKILL
    wait_until(lambda: not any(alive(pid) for pid in pids), 10, "all processes are gone")
    assert "no deployment is running" in inlay(tmp_path, "down").stderr


def test_in_the_background(tmp_path: Path) -> None:
    file = tmp_path / "least.toml"
    file.write_text(LEAST)
    begun = inlay(tmp_path, "up", "-d", str(file), timeout_s=120)
    assert begun.returncode == 0, begun.stderr
    assert "least serves the demo model at http://127.0.0.1:" in begun.stdout
    assert "inlay down least stops it" in begun.stdout
    assert inlay(tmp_path, "down", "--now").stdout == "stopped\n"


def test_a_process_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Also in the background, which passes on what the foreground says."""
    file = tmp_path / "d.toml"
    file.write_text(LEAST + "[instances.all.engine]\nmax_context_tokens = 999999")
    failed = inlay(tmp_path, "up", "-d", str(file), timeout_s=120)
    assert failed.returncode != 0
    assert "all-0 cannot start: max_context_tokens 999999 is more than" in failed.stderr
    assert "no deployment is running" in inlay(tmp_path, "status").stderr


def test_wrong_settings_and_a_taken_port_are_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text(LEAST.replace("16MiB", "0"))
    refused = inlay(tmp_path, "up", str(file))
    assert refused.returncode == 2 and "cache.memory must be positive" in refused.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(LEAST.replace("port = 0", f"port = {port}"))
        refused = inlay(tmp_path, "up", str(file))
    assert refused.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in refused.stderr


@pytest.mark.parametrize("signals", [1, 2])
def test_stop_signals(tmp_path: Path, signals: int) -> None:
    deployment = RunningDeployment(tmp_path, LEAST).wait_ready()
    pids = [one.pid for one in deployment.processes().values()]
    for _ in range(signals):
        deployment.signal(signal.SIGINT)
    assert deployment.wait() == 0
    assert not any(alive(pid) for pid in pids)
    assert deployment.output.endswith("stopped\n")


def test_a_signal_while_it_starts(tmp_path: Path) -> None:
    deployment = RunningDeployment(tmp_path, LEAST)
    wait_until(lambda: "starting least" in deployment.output, 30, "it starts")
    deployment.signal(signal.SIGTERM)
    assert deployment.wait() == 0
    assert "ready" not in deployment.output.partition("stopping")[2]
