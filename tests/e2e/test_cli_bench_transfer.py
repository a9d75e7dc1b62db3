"""`inlay bench transfer` in real processes."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inlay.kernels import native_problem
from tests.support.pause import go_on, pause

BENCH = [sys.executable, "-m", "inlay", "bench", "transfer"]
QUICK = ["--seconds", "0.05"]


@pytest.fixture(autouse=True)
def _needs_extension() -> None:
    if native_problem() is not None:
        pytest.skip(f"needs the extension: {native_problem()}")


def bench(*arguments: str, code: int = 0) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run([*BENCH, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done


@pytest.fixture
def target() -> Iterator[dict[str, Any]]:
    """A target in a process of its own: what it says, and the process."""
    arguments = ["--listen", "127.0.0.1:0", "--memory", "64MiB", "--json"]
    process = subprocess.Popen([*BENCH, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield {**json.loads(process.stdout.readline()), "process": process}
    process.kill()
    process.communicate()


def test_blocks_between_two_processes(target: dict[str, Any]) -> None:
    shape = ["--block-sizes", "4KiB,1MiB", "--batch", "3", "--threads", "2"]
    report = json.loads(bench(target["address"], *shape, *QUICK, "--json").stdout)
    assert report["target"] == target["address"]
    assert report["memory_bytes"] == target["memory_bytes"] == 64 << 20
    points = report["points"]
    assert [(p["op"], p["block_bytes"]) for p in points] == [
        ("read", 4096), ("read", 1 << 20), ("write", 4096), ("write", 1 << 20),
    ]  # fmt: skip
    for point in points:
        assert (point["batch"], point["threads"]) == (3, 2) and point["calls"] >= 4
        assert 0 < point["p50_us"] <= point["p90_us"] <= point["p99_us"] <= point["max_us"]
        moved = point["calls"] * 3 * point["block_bytes"]
        assert point["gbs"] == pytest.approx(moved / point["seconds"] / 1e9)
    target["process"].send_signal(signal.SIGINT)
    assert target["process"].wait(30) == 0


def test_a_target_heeds_a_signal_that_came_while_it_stood_still(target: dict[str, Any]) -> None:
    pid = target["process"].pid
    pause(pid)
    target["process"].send_signal(signal.SIGINT)
    go_on(pid)
    assert target["process"].wait(30) == 0


def test_pages_of_a_prompt_with_a_target_of_its_own() -> None:
    report = json.loads(bench("--workload", "kv", "--op", "read", *QUICK, "--json").stdout)
    (point,) = report["points"]
    assert point["batch"] == 61 * 32 and point["calls"] >= 2
    moved = point["calls"] * 61 * 32 * (144 << 10)
    assert point["gbs"] == pytest.approx(moved / point["seconds"] / 1e9)


def test_the_table_has_a_row_per_point() -> None:
    out = bench("--memory", "16MiB", "--block-sizes", "64KiB,1MiB", *QUICK).stdout
    assert out.count("64.0 KiB") == out.count("1.0 MiB") == 2 and "GB/s" in out


# `inlay bench transfer`, which says when it has measured a point.
TELLING = """
import sys
from inlay.serve.bench.transfer import TransferBench
from inlay.serve.cli import main

run = TransferBench.run

def telling(bench):
    for point in run(bench):
        print("measured", file=sys.stderr, flush=True)
        yield point

TransferBench.run = telling
main()
"""


def test_an_interrupt_prints_what_is_done() -> None:
    ops = "read,write" + ",read" * 10_000  # minutes
    arguments = ["--memory", "16MiB", "--block-sizes", "4KiB", "--op", ops, *QUICK, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-c", TELLING, "bench", "transfer", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for _ in range(3):
            assert process.stderr.readline() == "measured\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        own_target = children.read_text().split()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert 2 <= len(json.loads(out)["points"]) < 10_000
    end = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in own_target):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_target_that_dies_is_named(target: dict[str, Any]) -> None:
    arguments = ["--block-sizes", "4KiB", "--seconds", "30"]
    process = subprocess.Popen(
        [*BENCH, target["address"], *arguments], stderr=subprocess.PIPE, text=True
    )
    wait_for_connection(target["address"])
    target["process"].kill()
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors.startswith("inlay: error: ") and target["address"] in errors


def wait_for_connection(address: str) -> None:
    port = int(address.rpartition(":")[2])
    established = f":{port:04X} 01"  # remote port, state
    end = time.monotonic() + 30
    while not any(
        established in " ".join(line.split()[2:4])
        for line in Path("/proc/net/tcp").read_text().splitlines()
    ):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["--block-sizes", "1GiB"], "this needs 1.0 GiB", 2),
        (["--transports", "tcp,wire"], "'wire'", 1),
        (["--workload", "all"], "blocks or kv, got all", 2),
        (["--block-sizes", "big"], "'big' is not a size", 2),
        (["127.0.0.1:1"], "127.0.0.1:1", 1),
        (["127.0.0.1:1", "--listen", "127.0.0.1:0"], "not both", 2),
        (["--token-file", "/nowhere/token"], "/nowhere/token", 1),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], message: str, code: int) -> None:
    errors = bench("--memory", "16MiB", *arguments, code=code).stderr
    assert errors.startswith("inlay: error: ") and message in errors
    assert len(errors.splitlines()) == 1
