"""Serving instances with tiers behind their pages, and requests to them that say what they took."""

import contextlib
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from benchmarks.serving.server import Server, serve, wait_until_ready

TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Answer:
    """What one greedy completion took and gave.

    Attributes:
        ttft_ms: from sending to the first token.
        cached_tokens: of the prompt.
    """

    ttft_ms: float
    token_ids: list[int]
    cached_tokens: int


def ask(server: Server, prompt: Sequence[int], output_tokens: int, **fields: object) -> Answer:
    """Stream a completion of exactly so many tokens; `fields` are others of the request."""
    body = {
        "prompt": list(prompt),
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    token_ids: list[int] = []
    cached, first_s = 0, 0.0
    started_s = time.perf_counter()
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S
    ) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            for choice in event["choices"]:
                first_s = first_s or time.perf_counter()
                token_ids += choice["token_ids"]
            if event.get("usage"):
                cached = event["usage"]["prompt_tokens_details"]["cached_tokens"]
    return Answer(1000 * (first_s - started_s), token_ids, cached)


@contextlib.contextmanager
def instance(model: Path, settings: dict[str, object]) -> Iterator[Server]:
    """`inlay serve` with fields of its cache set; ready."""
    words = [
        word for name, value in settings.items() for word in ("--set", f"cache.{name}={value}")
    ]
    with serve(str(model), *words) as server:
        wait_until_ready(server)
        yield server


@contextlib.contextmanager
def store_master() -> Iterator[str]:
    """A master of a store for several instances, ready; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        command = [sys.executable, "-m", "inlay", "store", "master", "--listen", address]
        command += ["--admin", "none", "--state", f"{folder}/epoch"]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            _wait_until_listening(address, process)
            yield address
        except BaseException as error:
            log.seek(0)
            error.add_note(f"{' '.join(command[2:])}: {log.read().decode()[-2000:]}")
            raise
        finally:
            process.terminate()
            process.wait(TIMEOUT_S)


def _wait_until_listening(address: str, process: "subprocess.Popen[bytes]") -> None:
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"the master at {address} does not listen")


def metric(server: Server, name: str) -> float:
    """A value of `/metrics`; `name` has its labels."""
    for line in httpx.get(f"{server.url}/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise RuntimeError(f"{server.url}/metrics has no {name}")


def wait_until_written(server: Server, quiet_s: float = 0.2) -> None:
    """Return when nothing has been copied to a tier for a while."""
    name, deadline = "inlay_tier_written_bytes_total", time.monotonic() + TIMEOUT_S
    written, since = metric(server, name), time.monotonic()
    while time.monotonic() < deadline:
        time.sleep(0.02)
        now = metric(server, name)
        if now != written:
            written, since = now, time.monotonic()
        elif time.monotonic() - since > quiet_s:
            return
    raise RuntimeError(f"{server.url} still writes after {TIMEOUT_S:g} s")


def forget_device(server: Server) -> None:
    """Empty the instance's pages; the tiers behind keep what they have."""
    httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()


def random_tokens(draw: random.Random, count: int) -> list[int]:
    """Ordinary tokens of a random model."""
    return [draw.randrange(300, 1000) for _ in range(count)]
