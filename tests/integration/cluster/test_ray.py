"""A deployment in the actors of a Ray cluster: it comes back, changes, and leaves nothing."""

import os
import signal
import subprocess
import sys
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
from tests.support.ray_head import ray_head

pytest.importorskip("ray")

SHARED = """
[engine]
device = "cpu"
threads = 1
max_context_tokens = 512
cache.memory = "16MiB"
[dispatcher]
port = 0
"""
ALONE = 'name = "alone"' + SHARED + "[instances.all]\n"
LEAST = 'name = "least"\nlauncher = "ray"' + SHARED + "[instances.all]\n"
SPLIT = f"""
name = "split"
launcher = "ray"
drain = "20s"
{SHARED}
[instances.prefill]
role = "prefill"
[instances.decode]
role = "decode"
[store.nodes.n0]
memory = "8MiB"
"""
BACK_S = 60.0  # with a share of two cores
LEFT = """
import ray
ray.init(address="auto", configure_logging=False, log_to_driver=False)
groups = ray.util.placement_group_table().values()
free = ray.available_resources().get("CPU", 0.0)
print(sum(one["state"] != "REMOVED" for one in groups), free)
"""
PROMPT = "A lantern in the window of the old house " * 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray head that commands find; gives the address of this machine in Ray."""
    with ray_head(num_cpus=3) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        yield address.rpartition(":")[0]


@pytest.fixture(scope="module")
def deployment(
    cluster: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDeployment]:
    with running_deployment(tmp_path_factory.mktemp("split"), SPLIT) as found:
        yield found


def answer(url: str) -> str:
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    response = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def left() -> str:
    """Placement groups that Ray has, and free CPUs."""
    found = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60, check=True
    )
    return found.stdout.strip().splitlines()[-1]


def test_the_text_of_one_instance(deployment: RunningDeployment, tmp_path: Path) -> None:
    found = deployment.processes()
    assert {one.state for one in found.values()} == {"ready"}
    for name in ("prefill-0", "decode-0", "node-n0"):
        assert "ray::ProcessActor" in Path(f"/proc/{parent(found[name].pid)}/cmdline").read_text()
    for name in ("master-0", "dispatcher-0"):
        assert parent(found[name].pid) == deployment.pid
    assert "node split.n0" in Path(found["node-n0"].log).read_text()
    with running_deployment(tmp_path, ALONE) as alone:
        assert answer(deployment.url) == answer(alone.url)


def test_what_is_killed_comes_back(deployment: RunningDeployment) -> None:
    before = answer(deployment.url)
    found = deployment.processes()
    process, of_actor = found["prefill-0"].pid, found["decode-0"].pid
    actor = parent(process)
    os.kill(process, signal.SIGKILL)
    os.kill(parent(of_actor), signal.SIGKILL)
    wait_until(lambda: not alive(process) and not alive(of_actor), 10, "both are dead")

    def back() -> bool:
        now = deployment.processes()
        return all((now[n].state, now[n].run) == ("ready", 2) for n in ("prefill-0", "decode-0"))

    wait_until(back, BACK_S, "both are back")
    now = deployment.processes()
    assert parent(now["prefill-0"].pid) == actor  # which was not killed
    assert answer(deployment.url) == before
    for how in (
        "prefill-0 was killed by SIGKILL; it starts again in 0.1 s",
        "decode-0 was lost with its Ray actor, which Ray restarts; it starts again in 0.1 s",
    ):
        assert how in deployment.output


def test_scale_takes_room_and_gives_it_back(deployment: RunningDeployment) -> None:
    assert deployment.command("scale", "decode=2") == "decode: 1 -> 2 instances\n"
    assert left() == "2 0.0"
    found = deployment.processes()["decode-1"]
    actor = parent(found.pid)
    assert deployment.command("drain", "decode-1") == "decode-1 is gone\n"
    wait_until(lambda: not alive(found.pid) and not alive(actor), 10, "process and actor end")
    wait_until(lambda: left() == "1 1.0", 20, "Ray has the room again")


def test_down_leaves_nothing(deployment: RunningDeployment) -> None:
    """The last test of the module's deployment."""
    pids = [one.pid for one in deployment.processes().values()]
    pids += [actor for pid in pids if (actor := parent(pid)) != deployment.pid]
    assert deployment.command("down") == "stopped\n"
    assert deployment.wait() == 0
    wait_until(lambda: not any(alive(pid) for pid in pids), 10, "all processes are gone")
    wait_until(lambda: left() == "0 3.0", 20, "Ray has its resources again")


def test_actors_end_with_a_killed_supervisor(cluster: str, tmp_path: Path) -> None:
    """Here the file says where instances are, and they listen there."""
    deployment = RunningDeployment(tmp_path, LEAST + f'host = "{cluster}"\n').wait_ready()
    assert deployment.processes()["all-0"].address.startswith(f"tcp://{cluster}:")
    assert answer(deployment.url)
    pids = [one.pid for one in deployment.processes().values()]
    pids += [actor for pid in pids if (actor := parent(pid)) != deployment.pid]
    deployment.signal(signal.SIGKILL)
    assert deployment.wait() == -signal.SIGKILL
    wait_until(lambda: not any(alive(pid) for pid in pids), 20, "all processes are gone")
    wait_until(lambda: left() == "0 3.0", 20, "Ray has its resources again")


def test_stop_signals_while_it_starts(cluster: str, tmp_path: Path) -> None:
    deployment = RunningDeployment(tmp_path, LEAST)
    wait_until(lambda: "starting least" in deployment.output, 30, "it starts")
    deployment.signal(signal.SIGINT)
    assert deployment.wait() == 0
    wait_until(lambda: left() == "0 3.0", 20, "Ray has its resources again")


def test_no_room_and_no_such_machine(cluster: str, tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    for change, words in (
        ("count = 4", "needs 4 CPUs, and Ray has 3 there: use fewer instances"),
        ('host = "10.9.8.7"', "all-0 is to run on 10.9.8.7, and Ray has no such machine"),
    ):
        file.write_text(LEAST + change)
        refused = inlay(tmp_path, "up", str(file))
        assert refused.returncode == 1 and words in refused.stderr


def test_without_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    file = tmp_path / "d.toml"
    file.write_text(LEAST)
    refused = inlay(tmp_path, "up", str(file))
    assert refused.returncode == 1
    assert "Ray cannot be reached" in refused.stderr and "ray start --head" in refused.stderr
