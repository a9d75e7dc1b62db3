"""Who may use a store: each tenant has a token, and sees what was put with it alone."""

import re
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

from inlay.core.errors import ConfigError
from inlay.transfer.runtime_dir import shared_token

DEFAULT_TENANT = "default"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True)
class Tenant:
    """A key space and what proves that a connection may use it.

    Attributes:
        token: 16 to 64 bytes.
    """

    name: str
    token: bytes

    def __repr__(self) -> str:
        return f"Tenant({self.name!r})"


def read_tenants(file: Path) -> tuple[Tenant, ...]:
    """Read a TOML file of `tenant = "file of its token"`, relative to the file itself.

    Raises:
        ConfigError: it cannot be read, is open to others, or names no tenant.
    """
    text = _read_private(file)
    try:
        found = tomllib.loads(text.decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} is no TOML: {error}") from None
    tenants = []
    for name, value in found.items():
        if _NAME.fullmatch(name) is None or not isinstance(value, str):
            raise ConfigError(
                f'{file}: write tenant = "file of its token", with 1 to 64 letters, digits, dots, '
                f"dashes or underscores in its name; got {name!r} = {value!r}"
            )
        tenants.append(Tenant(name, read_token(file.parent / value)))
    if not tenants:
        raise ConfigError(f'{file} names no tenant: write default = "file of its token"')
    return tuple(tenants)


def read_token(file: Path | None) -> bytes:
    """The token in a file, or this user's on this host.

    Raises:
        ConfigError: the file cannot be read, is open to others, or holds no 16 to 64 bytes.
    """
    if file is None:
        return shared_token()
    token = _read_private(file)
    if not 16 <= len(token) <= 64:
        raise ConfigError(f"{file} holds {len(token)} bytes: a token has 16 to 64")
    return token


def _read_private(file: Path) -> bytes:
    try:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise ConfigError(f"{file} can be read by others: chmod 600 {file}")
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
