import functools

import pytest

from inlay.core.clock import FakeClock
from inlay.engine.config import EngineConfig
from inlay.models import hub
from inlay.serve import server
from inlay.serve.config import ServeConfig
from inlay.serve.rate_line import RateLine
from tests.support.hub_server import HubServer
from tests.support.tiny_models import make_tiny_model

MIB = 1 << 20


def test_a_line_now_and_then_while_bytes_come():
    clock, lines = FakeClock(), []
    line = RateLine("fetching org/name", lines.append, clock.now)
    for done in range(0, 101, 10):
        line(done * MIB, 100 * MIB)
        clock.advance(2)
    assert lines == [
        "fetching org/name: 10.0 MiB of 100.0 MiB, 5.2 MB/s, 18 s left",
        "fetching org/name: 40.0 MiB of 100.0 MiB, 5.2 MB/s, 12 s left",
        "fetching org/name: 70.0 MiB of 100.0 MiB, 5.2 MB/s, 6 s left",
    ]


def test_nothing_about_a_model_that_is_there():
    lines = []
    line = RateLine("fetching org/name", lines.append, FakeClock().now)
    for done in range(4):
        line(done, 3)
    assert lines == []


def test_serve_reports_a_download(tmp_path, monkeypatch, capsys):
    """From `inlay serve org/tiny` down to the bytes, up to where the engine would start."""
    monkeypatch.setattr(server, "RateLine", functools.partial(RateLine, now=_every_second()))

    class Stop(Exception):
        pass

    async def stop(*_):
        raise Stop

    monkeypatch.setattr(server, "_serve", stop)
    directory = make_tiny_model(tmp_path / "tiny", "llama")
    with HubServer() as hub_server:
        hub_server.add("org/tiny", directory)
        place = {"endpoint": hub_server.url, "cache_dir": tmp_path / "cache"}
        fetch = hub.fetch
        monkeypatch.setattr(hub, "fetch", lambda *args, **rest: fetch(*args, **rest | place))
        monkeypatch.setattr("inlay.models.hub._LARGE_BYTES", 1)
        with pytest.raises(Stop):
            server.run_server(ServeConfig(port=0, engine=EngineConfig(model="org/tiny")))
    assert "fetching org/tiny: " in capsys.readouterr().out


def _every_second():
    clock = FakeClock()

    def now():
        clock.advance(1)
        return clock.now()

    return now
