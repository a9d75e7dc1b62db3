"""An update that fails on the way leaves nothing behind that keeps the next one from working."""

import asyncio
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.core.errors import ModelFileError, WeightsError, WeightsMismatchError
from inlay.core.messages import InFlight, WeightsSwapped
from inlay.serve.metrics import ServerMetrics
from inlay.serve.weights.config import UpdateConfig
from inlay.serve.weights.offers import Offers
from inlay.serve.weights.updates import Updates
from inlay.store.tenants import read_token
from inlay.transfer import TransferEngine
from inlay.weights import Publisher
from tests.unit.cluster.instance_stand_in import ENGINE


class Takes:
    """An engine that takes all weights, or says what is wrong with them."""

    def __init__(self) -> None:
        self.wrong = ""

    async def swap_weights(
        self, directory: Path, version: str, in_flight: InFlight = "finish"
    ) -> WeightsSwapped:
        if self.wrong:
            raise ModelFileError(self.wrong)
        assert (directory / "config.json").read_text() == "{}"
        return WeightsSwapped(version=version, seconds=0.0)


class Server:
    """Updates of one server, and a publisher of tensors."""

    def __init__(self, publisher: Publisher, folder: Path) -> None:
        self.publisher, self.folder, self.engine = publisher, folder / "versions", Takes()
        served = folder / "served"
        served.mkdir()
        (served / "config.json").write_text("{}")
        engine: Any = self.engine
        config = UpdateConfig(directory=str(self.folder))
        self.updates = Updates(engine, config, served, ServerMetrics(ENGINE, "m"))

    def update(self) -> str:
        address = self.publisher.address
        done = self.updates.from_publishers([address], "m", None, "finish")
        return asyncio.run(done)[0].version


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with TransferEngine(token=read_token(None)) as engine, Publisher(engine, "m") as publisher:
        publisher.publish("1", {"a": np.arange(9)})
        made = Server(publisher, tmp_path)
        yield made
        made.updates.close()


def test_no_room_for_the_config(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(WeightsError, match=r"config\.json: No space left on device; make room"):
            server.update()
    assert not list(server.folder.iterdir())
    assert server.update() == "1"


def test_a_damaged_file_is_the_publishers_fault(server: Server) -> None:
    server.engine.wrong = "the weights lack b"
    with pytest.raises(WeightsMismatchError, match="lack b") as error:
        server.update()
    assert error.value.http_status == 400
    server.engine.wrong = ""
    assert server.update() == "1"


def test_where_nobody_may_look_is_not_offered(tmp_path: Path) -> None:
    offers = Offers("127.0.0.1:0", "")
    assert asyncio.run(offers.offer(tmp_path / ("x" * 300), "1")) is None
    offers.close()
