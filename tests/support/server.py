"""A real server in a process of its own, on a free port, for tests of whole behaviour.

with running_server(model_directory) as server:
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="-")
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

_MAIN = """
import json, sys
import msgspec
from inlay.core.errors import InlayError
from inlay.serve.config import ServeConfig
from inlay.serve.server import run_server
try:
    sys.exit(run_server(msgspec.convert(json.loads(sys.argv[1]), ServeConfig)))
except InlayError as error:
    sys.exit(f"{error.code}: {error}")
"""
_BANNER = re.compile(r" at (http://\S+) \(ready in ([\d.]+) s\)")


class RunningServer:
    """A server's process, what it printed, and shortcuts to ask it.

    Attributes:
        url: without a slash at the end; empty until it is ready.
        ready_s: time from the start of the process to the banner, by the server's own count.
    """

    def __init__(self, model: Path | str | None, **options: Any) -> None:
        engine = {"model": None if model is None else str(model), **options.pop("engine", {})}
        config = {"port": 0, "page": False, **options, "engine": engine}
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN, json.dumps(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        )
        self.url = ""
        self.ready_s = 0.0
        self._lines: list[str] = []
        self._known = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)
            found = _BANNER.search(line)
            if found:
                self.url, self.ready_s = found[1], float(found[2])
                self._known.set()
        self._known.set()

    @property
    def log(self) -> str:
        """Everything it printed so far."""
        return "".join(self._lines)

    @property
    def pid(self) -> int:
        """The HTTP process."""
        return self._process.pid

    def engine_pid(self) -> int:
        """The engine's process, found as the child of the HTTP process."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return next(
            int(child)
            for child in children
            if "inlay.engine.worker" in Path(f"/proc/{child}/cmdline").read_text()
        )

    def wait_ready(self, timeout_s: float = 90.0) -> "RunningServer":
        """Wait for the banner."""
        self._known.wait(timeout_s)
        if not self.url:
            self.kill()
            raise AssertionError(f"the server did not start:\n{self.log}")
        return self

    def stop(self, timeout_s: float = 20.0) -> int:
        """Ask it to stop; returns its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = 20.0) -> int:
        """Wait for its end; returns its exit code."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not end in {timeout_s} s:\n{self.log}") from None
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """End it and everything it started, at once."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def gauges(self) -> dict[str, float]:
        """Metrics without labels, and pages by state as `pages_free` and so on."""
        found: dict[str, float] = {}
        for line in httpx.get(self.url + "/metrics", timeout=30).text.splitlines():
            name, _, value = line.rpartition(" ")
            page = re.fullmatch(r'inlay_pages\{state="(\w+)"\}', name)
            if page:
                found[f"pages_{page[1]}"] = float(value)
            elif name.startswith("inlay_") and "{" not in name:
                found[name] = float(value)
        return found

    def wait_idle(self, timeout_s: float = 10.0) -> dict[str, float]:
        """Wait until no request runs or waits and none holds a page; returns the gauges."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            found = self.gauges()
            busy = found["inlay_requests_running"] + found["inlay_requests_waiting"]
            if not busy and not found["pages_used"]:
                return found
            if time.monotonic() > deadline_s:
                raise AssertionError(f"requests or pages are left: {found}")
            time.sleep(0.02)


@contextmanager
def running_server(model: Path | str | None, **options: Any) -> Iterator[RunningServer]:
    """A server that is ready; stopped at the end, and killed if it does not stop.

    Args:
        model: a directory, or None for the demo model.
        options: fields of `ServeConfig`; `engine` is a dictionary of `EngineConfig`'s.
    """
    server = RunningServer(model, **options)
    try:
        yield server.wait_ready()
    finally:
        server.stop()
