"""Who supervises a deployment, and what a killed supervisor leaves."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from inlay.cluster.deployment_directory import DeploymentDirectory, find_running
from inlay.core.errors import DeploymentError

KILLED = """
import os, signal, sys
from pathlib import Path
from inlay.cluster.deployment_directory import DeploymentDirectory
with DeploymentDirectory(Path(sys.argv[1]), "demo").claim(Path("d.toml")) as found:
    Path(found.sockets, "control").touch()
    print(found.sockets, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_one_supervisor_of_a_name(tmp_path: Path) -> None:
    directory = DeploymentDirectory(tmp_path, "demo")
    assert directory.running() is None
    with directory.claim(Path("/files/d.toml")) as own:
        assert stat.S_IMODE(os.stat(own.sockets).st_mode) == 0o700
        assert directory.running() == own == find_running(tmp_path, None)
        with (
            pytest.raises(DeploymentError, match=rf"process {os.getpid()}, from /files/d.toml"),
            DeploymentDirectory(tmp_path, "demo").claim(Path("other.toml")),
        ):
            pass
        with DeploymentDirectory(tmp_path, "other").claim(Path("o.toml")):
            with pytest.raises(DeploymentError, match="several deployments are running.*demo, oth"):
                find_running(tmp_path, None)
            assert find_running(tmp_path, "demo") == own
    assert directory.running() is None
    assert not Path(own.sockets).exists()
    with directory.claim(Path("d.toml")):
        pass


def test_a_killed_supervisor_is_none(tmp_path: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=30
    )
    sockets = Path(killed.stdout.strip())
    assert (sockets / "control").exists()
    directory = DeploymentDirectory(tmp_path, "demo")
    assert directory.running() is None
    with pytest.raises(DeploymentError, match="'demo' is not running; none is running"):
        find_running(tmp_path, "demo")
    with directory.claim(Path("d.toml")):
        assert not (sockets / "control").exists()


@pytest.mark.parametrize("depth", [0, 12])
def test_a_socket_fits_however_long_the_path_is(depth: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        check_socket_fits(Path(short).joinpath(*["directory"] * depth), inside=depth == 0)


def check_socket_fits(root: Path, *, inside: bool) -> None:
    with DeploymentDirectory(root, "demo").claim(Path("d.toml")) as found:
        assert len(found.control) < 107
        assert found.sockets.startswith(str(root)) == inside
        assert stat.S_IMODE(os.stat(found.sockets).st_mode) == 0o700
    assert not Path(found.sockets).exists()


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = DeploymentDirectory(tmp_path / "file" / "deployments", "demo")
    words = r"file/deployments/demo is for .*\(Not a directory\): set INLAY_CACHE_DIR"
    with pytest.raises(DeploymentError, match=words), directory.claim(Path("d.toml")):
        pass
    assert directory.running() is None


def test_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match="start one with inlay up FILE"):
        find_running(tmp_path / "none", None)


def test_the_secret_is_drawn_once_and_kept_private(tmp_path: Path) -> None:
    drawn = DeploymentDirectory(tmp_path, "demo").secret()
    assert len(drawn) == 64
    assert DeploymentDirectory(tmp_path, "demo").secret() == drawn
    assert DeploymentDirectory(tmp_path, "other").secret() != drawn
    assert stat.S_IMODE((tmp_path / "demo" / "secret").stat().st_mode) == 0o600
