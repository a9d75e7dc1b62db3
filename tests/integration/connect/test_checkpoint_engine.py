"""checkpoint-engine's own P2PStore over Inlay's transfer engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import ENVIRONMENTS
from tests.integration.connect.conftest import PROGRAM

SCRIPT = Path(__file__).with_name("checkpoint_engine_p2p.py")


@pytest.fixture(scope="module")
def site() -> str:
    """The site-packages of the environment `checkpoint-engine`, which has the package."""
    found = next((ENVIRONMENTS / "checkpoint-engine").glob("lib/python3*/site-packages"), None)
    if found is None or not (found / "checkpoint_engine").is_dir():
        pytest.skip(f"{ENVIRONMENTS / 'checkpoint-engine'} is missing, or lacks the package")
    return str(found)


@pytest.mark.peers
def test_its_store_reads_buckets_of_another_rank(site: str) -> None:
    command = [sys.executable, "-m", PROGRAM, str(SCRIPT)]
    with subprocess.Popen(
        [*command, "own", site], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        try:
            target, address = json.loads(owner.stdout.readline())
            done = subprocess.run(
                [*command, "read", site, target, str(address)],
                capture_output=True, text=True, timeout=100, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-4000:]
            equal, refused = json.loads(done.stdout.splitlines()[-1])
            assert equal and refused
            owner.stdin.close()
            assert owner.wait(20) == 0
        finally:
            owner.kill()
