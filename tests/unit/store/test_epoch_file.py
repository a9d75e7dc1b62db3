"""The epoch of a master that stands alone outlives the process."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inlay.core.errors import ConfigError, StoreUnavailable
from inlay.store.epoch_file import EpochFile

NEVER = threading.Event()


def test_each_reign_has_a_greater_epoch_and_the_last_ones_nodes(tmp_path: Path) -> None:
    file = tmp_path / "new" / "master.json"
    first = EpochFile(file)
    reign = first.begin(NEVER)
    assert reign is not None and (reign.epoch, reign.nodes) == (1, ())
    assert first.renew(["a", "b"]) == float("inf")
    again = first.begin(NEVER, above=40)
    assert again is not None and again.epoch == 41
    first.end()
    second = EpochFile(file)
    reign = second.begin(NEVER, above=7)
    assert reign is not None and (reign.epoch, reign.nodes) == (42, ("a", "b"))
    second.end()


def test_two_masters_do_not_share_a_file(tmp_path: Path) -> None:
    first = EpochFile(tmp_path / "epoch")
    with pytest.raises(StoreUnavailable, match="another master has .*epoch.*--state"):
        EpochFile(tmp_path / "epoch")
    first.end()
    EpochFile(tmp_path / "epoch").end()


def test_a_killed_master_leaves_its_file_usable(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, threading; from pathlib import Path\n"
        "from inlay.store.epoch_file import EpochFile\n"
        "file = EpochFile(Path(sys.argv[1])); file.begin(threading.Event())\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    for epoch in (1, 2):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "epoch")], check=False)
        file = EpochFile(tmp_path / "epoch")
        assert file._epoch == 2 * epoch - 1
        file.begin(NEVER)
        file.end()


@pytest.mark.parametrize("body", [b"", b"7", b'{"epoch": "x", "nodes": []}', b'{"epoch": 3}'])
def test_a_damaged_file_is_said_with_the_remedy(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "epoch").write_bytes(body)
    with pytest.raises(
        ConfigError,
        match="epoch(, line 1: is no JSON| holds a number| holds no epoch).*: remove it",
    ):
        EpochFile(tmp_path / "epoch")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="cannot be made"):
        EpochFile(tmp_path / "epoch")


def test_a_place_that_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match="cannot be made"):
        EpochFile(Path("/proc/nobody/epoch"))
