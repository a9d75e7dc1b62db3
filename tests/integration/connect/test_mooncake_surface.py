"""Callers see the same of Mooncake and of Inlay in its place: one script, one list of results."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.integration.connect.conftest import run_script
from tests.support.directories import free_port
from tests.support.store import listens

SCRIPT = Path(__file__).with_name("mooncake_surface.py")
NAMES = Path(__file__).with_name("mooncake_names.py")
# What Mooncake 0.3.13.post1 gave (`test_mooncake_gives_these_results`).
EXPECTED = json.loads(SCRIPT.with_suffix(".json").read_text())
EXPECTED_NAMES = json.loads(NAMES.with_suffix(".json").read_text())
PEERS = Path(os.environ.get("INLAY_PEERS", Path.home() / ".cache" / "inlay-peers"))


def test_inlay_gives_these_results(master: str) -> None:
    assert run_script(SCRIPT, master, "P2PHANDSHAKE") == EXPECTED


def test_no_name_is_missing() -> None:
    found = run_script(NAMES)
    assert not EXPECTED_NAMES.keys() - found.keys()
    whole = ("TransferEngine", "MooncakeDistributedStore", "BufferPool", "HostMemAllocator")
    for kind in EXPECTED_NAMES:
        if kind.endswith(whole):
            assert not set(EXPECTED_NAMES[kind]) - set(found[kind]), kind


@pytest.mark.peers
def test_mooncake_has_these_names() -> None:
    python = PEERS / "mooncake" / "bin" / "python"
    assert run_script(NAMES, python=str(python), real=True) == EXPECTED_NAMES


@pytest.mark.peers
def test_mooncake_gives_these_results() -> None:
    python = PEERS / "mooncake" / "bin" / "python"
    programs = next(python.parent.parent.glob("lib/python3*/site-packages/mooncake"))
    port, metrics = free_port(), free_port()
    flags = [f"--rpc_port={port}", "--rpc_address=127.0.0.1", f"--metrics_port={metrics}"]
    flags += ["--metrics_host=127.0.0.1", "--default_kv_lease_ttl=300"]
    with subprocess.Popen(
        [programs / "mooncake_master", *flags],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            listens(port, process)
            found = run_script(
                SCRIPT, f"127.0.0.1:{port}", "P2PHANDSHAKE", python=str(python), real=True
            )
        finally:
            process.terminate()
    assert found == EXPECTED
