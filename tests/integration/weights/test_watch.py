"""A watcher that cannot do all at once: what it has begun, it ends later."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import pytest

from inlay.core.errors import EndpointError, WeightsError
from inlay.serve.weights.watch import Watch
from inlay.transfer import TransferEngine
from inlay.weights import Publisher
from tests.support.directories import free_port


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with TransferEngine() as engine, Publisher(engine, "m") as made:
        made.publish("1", {"a": np.arange(9)})
        yield made


def test_the_link_is_made_when_it_can_be(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    with TransferEngine() as engine:
        watch = Watch(engine, [publisher.address], "m", tmp_path, say=lambda _: None)
        with pytest.raises(WeightsError, match="current cannot be made a link to 1"):
            watch.look()
        (tmp_path / "current").rmdir()
        assert watch.look()
        assert (tmp_path / "current/model.safetensors").exists()
        assert not watch.look()
        watch.close()


class Taker(BaseHTTPRequestHandler):
    """A server that takes each version."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Nothing."""


def test_a_version_counts_when_the_server_has_it(publisher: Publisher, tmp_path: Path) -> None:
    said: list[str] = []
    port = free_port()
    with TransferEngine() as engine:
        server = f"http://127.0.0.1:{port}"
        watch = Watch(engine, [publisher.address], "m", tmp_path, server=server, say=said.append)
        for _ in range(2):
            with pytest.raises(EndpointError, match="does not answer"):
                watch.look()
        with HTTPServer(("127.0.0.1", port), Taker) as taker:
            answering = threading.Thread(target=taker.handle_request)
            answering.start()
            assert watch.look()
            answering.join()
        assert not watch.look()
        watch.close()
    assert len(said) == 1, "it is pulled once"
