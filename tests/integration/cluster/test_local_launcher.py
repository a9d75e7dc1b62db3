"""Child processes of the local launcher, with processes that behave and others."""

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from inlay.cluster.launch.launcher import ProcessSpec, Running
from inlay.cluster.launch.local import LocalLauncher
from tests.support.deployments import alive, wait_until


async def start(folder: Path, **setup: Any) -> tuple[Running, dict[str, Any]]:
    """A process that is ready, and what it says of itself."""
    cpus, stop_signal = setup.pop("cpus", ()), setup.pop("stop_signal", 0)
    spec = ProcessSpec(
        name="p",
        kind="instance",
        module="tests.integration.cluster.played_process",
        setup={"name": "p", **setup},
        cpus=cpus,
        stop_signal=stop_signal,
    )
    process = await LocalLauncher(folder).start(spec)
    said = await asyncio.wait_for(anext(process.lines()), 30)
    return process, json.loads(said.address)


async def test_a_process_keeps_the_contract(tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    process, said = await start(tmp_path, cpus=(cpu,), print="not for the launcher")
    assert (said["parent"], said["cpus"]) == (True, [cpu])
    await process.stop(30)
    assert await process.ended() == "ended with exit status 0"
    assert [line async for line in process.lines()] == []
    assert "not for the launcher" in process.log_end()
    assert "log of p" in (tmp_path / "p.log").read_text()
    await process.stop(30)  # once more is no error
    process.kill()


async def test_who_does_not_end_is_killed_with_what_it_started(tmp_path: Path) -> None:
    process, said = await start(tmp_path, deaf=True, child=True)
    began_s = time.monotonic()
    await process.stop(0.2)
    assert time.monotonic() - began_s < 10
    assert await process.ended() == "was killed by SIGKILL"
    wait_until(lambda: not alive(said["child"]), 5, "the child is gone")


async def test_what_an_ended_process_started_is_gone_too(tmp_path: Path) -> None:
    process, said = await start(tmp_path, exit=7, child=True)
    assert await asyncio.wait_for(process.ended(), 30) == "ended with exit status 7"
    wait_until(lambda: not alive(said["child"]), 5, "the child is gone")


async def test_some_are_asked_by_a_signal(tmp_path: Path) -> None:
    process, _ = await start(tmp_path, stop_signal=signal.SIGTERM)
    await process.stop(30)
    assert await process.ended() == "was killed by SIGTERM"


async def test_a_setup_that_nobody_reads(tmp_path: Path) -> None:
    spec = ProcessSpec(name="p", kind="instance", module="no.such.module", setup={})
    process = await LocalLauncher(tmp_path).start(spec)
    assert [line async for line in process.lines()] == []
    assert await process.ended() == "ended with exit status 1"
    assert "no.such.module" in process.log_end()[-1] or "No module named" in process.log_end()[-1]
