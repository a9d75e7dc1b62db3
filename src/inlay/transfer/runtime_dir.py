"""The directory that this user's processes on this machine share, and the token in it."""

import os
import secrets
import stat
from pathlib import Path

from inlay.core.errors import ConfigError

TOKEN_BYTES = 32


def runtime_dir() -> Path:
    """`/run/user/UID/inlay`, else `/tmp/inlay-UID`; made with mode 0700 if it is not there.

    Raises:
        ConfigError: what is there is a link, another user's, or open to others.
    """
    user = os.getuid()
    parent = Path(f"/run/user/{user}")
    directory = parent / "inlay" if parent.is_dir() else Path(f"/tmp/inlay-{user}")
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user or found.st_mode & 0o077:
        raise ConfigError(
            f"{directory} must be a directory of user {user} with mode 0700; remove it, or give "
            "the engine a token"
        )
    return directory


def shared_token(directory: Path | None = None) -> bytes:
    """The token of all engines of this user on this machine: `token` in the runtime directory.

    Made at first use, for this user alone to read. Engines of another machine or user need it, too,
    or each engine is given the same `token`.

    Raises:
        ConfigError: the file is open to others or damaged.
    """
    file = (directory or runtime_dir()) / "token"
    if not file.exists():
        # Linked into place whole, so that no other process reads a part; the first one stays.
        own = file.with_name(f"token.{secrets.token_hex(8)}")
        own.touch(mode=0o600)
        own.write_bytes(secrets.token_bytes(TOKEN_BYTES))
        try:
            os.link(own, file)
        except FileExistsError:
            pass
        finally:
            own.unlink()
    found = file.lstat()
    token = file.read_bytes()
    safe = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    if not safe or len(token) != TOKEN_BYTES:
        raise ConfigError(
            f"{file} must be a file of this user, mode 0600, with {TOKEN_BYTES} bytes; remove it"
        )
    return token
