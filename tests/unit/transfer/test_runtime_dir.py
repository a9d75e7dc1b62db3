"""The token that a user's processes share."""

from pathlib import Path

import pytest

from inlay.core.errors import ConfigError
from inlay.transfer import runtime_dir
from inlay.transfer.runtime_dir import shared_token


def test_made_once_for_this_user_alone(tmp_path: Path) -> None:
    token = shared_token(tmp_path)
    assert len(token) == 32 and shared_token(tmp_path) == token
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


@pytest.mark.parametrize("damage", ["open", "short", "link"])
def test_a_token_that_is_not_safe(tmp_path: Path, damage: str) -> None:
    shared_token(tmp_path)
    file = tmp_path / "token"
    if damage == "open":
        file.chmod(0o644)
    elif damage == "short":
        file.write_bytes(b"short")
    else:
        file.rename(tmp_path / "other")
        file.symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="token"):
        shared_token(tmp_path)


def test_a_directory_that_is_not_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path

    def moved(path: str) -> Path:
        return real(
            str(path)
            .replace("/run/user", f"{tmp_path}/run")
            .replace("/tmp/inlay", f"{tmp_path}/inlay")
        )

    monkeypatch.setattr(runtime_dir, "Path", moved)
    directory = runtime_dir.runtime_dir()
    assert directory.parent == tmp_path and directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o755)
    with pytest.raises(ConfigError, match="0700"):
        runtime_dir.runtime_dir()
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="0700"):
        runtime_dir.runtime_dir()
