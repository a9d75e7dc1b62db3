"""Names of engines, looked up in a service that a cluster runs anyway: etcd, Redis, or HTTP.

A directory holds, for each name, one engine's id and addresses, never its segments: those are asked
of the engine itself, so that an entry that is out of date can mislead nobody. Uses the standard
library alone. `open_directory` chooses by the URL.
"""

from urllib.parse import urlsplit

from inlay.core.errors import ConfigError
from inlay.transfer.directory.base import Directory, Entry
from inlay.transfer.directory.etcd import EtcdDirectory
from inlay.transfer.directory.http import HttpDirectory
from inlay.transfer.directory.names import Names
from inlay.transfer.directory.redis import RedisDirectory

__all__ = ["Directory", "Entry", "Names", "open_directory"]

FORMS = "etcd://host:2379, redis://[:password@]host:6379[/db] or http://host:port/path"


def open_directory(url: str) -> Directory:
    """The directory at `url`. Nothing is asked yet.

    Raises:
        ConfigError: no such form.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        database = int(parts.path.strip("/") or 0) if parts.scheme == "redis" else 0
    except ValueError as error:
        raise ConfigError(f"{url} is no directory ({error}): write {FORMS}") from None
    if not host:
        raise ConfigError(f"{url} is no directory: write {FORMS}")
    if parts.scheme == "etcd":
        return EtcdDirectory(host, port or 2379)
    if parts.scheme == "redis":
        return RedisDirectory(host, port or 6379, database, parts.password)
    if parts.scheme == "http":
        return HttpDirectory(host, port or 80, parts.path or "/")
    raise ConfigError(f"{url} is no directory: write {FORMS}")
