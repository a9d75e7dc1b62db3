"""Each new version of a checkpoint in a directory of its own, and a server that is told."""

import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from inlay.core.errors import ConfigError, EndpointError, TransferError, WeightsError
from inlay.core.http import ask_http
from inlay.transfer import TransferEngine
from inlay.weights import DirectoryLanding, Held, check_label, newest, pull

log = logging.getLogger(__name__)

CURRENT = "current"
_UPDATE_S = 3600.0


class Watch:
    """See the module.

    Args:
        directory: has the versions; made where it is not there.
        keep: how many of those stay that this watcher pulled; nothing else there is removed.
        server: its URL; None: nobody is told.
        say: takes a line for each version.
    """

    def __init__(
        self,
        engine: TransferEngine,
        publishers: Sequence[str],
        name: str,
        directory: Path,
        *,
        keep: int = 2,
        server: str | None = None,
        say: Callable[[str], None],
    ) -> None:
        self._engine, self._publishers, self._name = engine, publishers, name
        self._directory = directory
        self._keep = keep
        self._server = None if server is None else _host_and_port(server)
        self._say = say
        self._held: Held | None = None
        self._finished = ""  # the version
        self._pulled: list[str] = []
        directory.mkdir(parents=True, exist_ok=True)

    def run(self, *, every_s: float, versions: int | None = None) -> None:
        """Ask for new versions, and pull them.

        Args:
            versions: return after so many; None: never.
        """
        pulled = 0
        complaint = ""
        while versions is None or pulled < versions:
            try:
                pulled += self.look()
                complaint = ""
            except (TransferError, WeightsError, EndpointError) as error:
                if str(error) != complaint:  # said once
                    complaint = str(error)
                    log.warning("%s; trying again", error)
            if versions is None or pulled < versions:
                time.sleep(every_s)

    def look(self) -> bool:
        """Pull what is new, link it and tell the server, as far as that has not been done; whether
        all of it is done now and was not before.

        Raises:
            WeightsError, TransferError: it cannot be pulled or linked now.
            EndpointError: the server does not take it.
        """
        version = newest(self._engine, self._publishers, self._name)
        if version is None:
            return False
        if check_label(version, "version") == CURRENT:
            raise WeightsError(
                f"{version!r} is the link to the newest version: publish another name"
            )
        if version == self._finished:
            return False
        target = self._directory / version
        if self._held is None or self._held.manifest.version != version:
            self._pull(target, version)
        self._link(version)
        self._remove_old()
        self._tell_server(target, version)
        self._finished = version
        return True

    def close(self) -> None:
        """Offer nothing any more; the directories stay."""
        if self._held is not None:
            self._held.close()

    def _pull(self, target: Path, version: str) -> None:
        held = pull(
            self._engine,
            self._publishers,
            self._name,
            # One of an earlier run may be of another publisher.
            landing=DirectoryLanding(target, replace=True),
            version=version,
            previous=self._held,
        )
        if self._held is not None:
            self._held.close()
        self._held = held
        self._pulled = [one for one in self._pulled if one != version] + [version]
        report = held.report
        self._say(
            f"{self._name} {version}: {sum(report.taken_bytes.values())} bytes pulled, "
            f"{report.kept_bytes} kept, {report.seconds:.1f} s"
        )

    def _link(self, version: str) -> None:
        link, fresh = self._directory / CURRENT, self._directory / f".{CURRENT}"
        try:
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(version)
            os.replace(fresh, link)
        except OSError as error:
            raise WeightsError(
                f"{link} cannot be made a link to {version} ({error.strerror}): make room, or "
                "remove what is there"
            ) from error

    def _tell_server(self, target: Path, version: str) -> None:
        if self._server is None:
            return
        body = json.dumps({"directory": str(target.resolve()), "version": version}).encode()
        try:
            status, answer = ask_http(*self._server, "POST", "/v1/weights/update", body, _UPDATE_S)
        except OSError as error:
            raise EndpointError(f"the server does not answer: {error}") from error
        if status != 200:
            text = answer[:300].decode(errors="replace")
            raise EndpointError(f"the server does not take {version}: {text}", status)

    def _remove_old(self) -> None:
        for old in self._pulled[: -self._keep]:
            shutil.rmtree(self._directory / old, ignore_errors=True)
        del self._pulled[: -self._keep]


def _host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ConfigError(f"--server {url}: write http://HOST:PORT")
    return parts.hostname, parts.port or 80
