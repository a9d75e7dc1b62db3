"""New weights for instances that see no directory of each other, or of the dispatcher."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from inlay.transfer import TransferEngine
from inlay.weights import Publisher
from tests.support.cluster import RunningDispatcher, RunningInstance, ended
from tests.support.deployments import wait_until
from tests.support.server import running_server
from tests.support.tiny_models import make_tiny_model

SOON_S = 90.0  # a process that starts imports for seconds, with a share of two cores
BODY = {"prompt": list(range(5, 60)), "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def text(url: str) -> str:
    told = httpx.post(url + "/v1/completions", json=BODY, timeout=60)
    assert told.status_code == 200, told.text
    return str(told.json()["choices"][0]["text"])


class Machines:
    """Processes that have a directory each, to which their relative paths lead."""

    def __init__(self, folder: Path, model: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._model = model
        self._stack = stack
        self.instances: dict[str, RunningInstance] = {}

    def home(self, name: str) -> Path:
        return self._folder / name

    def start(self, name: str) -> None:
        """An instance; where it was before, if it was."""
        before = self.instances.get(name)
        port = 0 if before is None else int(before.member.address.rpartition(":")[2])
        one = RunningInstance(
            name, self._folder, port=port, home=self.home(name), model=str(self._model)
        )
        self.instances[name] = one
        self._stack.enter_context(ended(one))
        one.wait_ready()

    def dispatcher(self, name: str) -> RunningDispatcher:
        serve = {"page": False, "weights": {"directory": "versions"}}
        members = [one.member for one in self.instances.values()]
        started = RunningDispatcher(members, self._folder, home=self.home(name), serve=serve)
        self._stack.enter_context(ended(started))
        return started

    def kept(self, name: str) -> int:
        """How many versions an instance has on its machine."""
        return len(list(self.home(name).glob("cache/instances/*/*")))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    made = tmp_path_factory.mktemp("weights")
    return [make_tiny_model(made / str(seed), seed=seed) for seed in (1, 2)]


@pytest.fixture
def machines(tmp_path: Path, models: list[Path]) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, models[0], stack)


def versions(url: str) -> dict[str, str]:
    told = httpx.get(url + "/v1/weights", timeout=30).json()
    return {one["name"]: one["version"] for one in told["instances"]}


def update(url: str, **body: Any) -> httpx.Response:
    return httpx.post(url + "/v1/weights/update", json=body, timeout=120)


def test_each_pulls_to_its_own_machine_and_one_that_comes_back_too(
    machines: Machines, models: list[Path]
) -> None:
    with running_server(models[1], engine={"device": "cpu", "threads": 1}) as other:
        new = text(other.url)
    for name in ("a", "b"):
        machines.start(name)
    first = machines.dispatcher("d")
    old = text(first.url)
    assert old != new
    with TransferEngine() as engine, Publisher(engine, "model") as publisher:
        publisher.publish("v2", models[1], piece_bytes=4096)
        told = update(first.url, publishers=[publisher.address])
    assert told.status_code == 200, told.text + machines.instances["a"].log.read_text()
    assert versions(first.url) == {"a": "v2", "b": "v2"}
    assert (machines.home("d") / "versions" / "v2").is_dir()
    for name in ("a", "b"):
        assert not (machines.home(name) / "versions").exists() and machines.kept(name) == 1
    assert [text(first.url) for _ in range(2)] == [new, new]

    # The publisher is gone; the dispatcher has them.
    machines.instances["b"].kill()
    machines.start("b")
    wait_until(lambda: versions(first.url) == {"a": "v2", "b": "v2"}, SOON_S, "b has them again")
    assert machines.kept("b") == 1
    assert [text(first.url) for _ in range(2)] == [new, new]

    # That dispatcher is gone, too, with all that lay on its machine; the other instance has them.
    first.kill()
    machines.instances["b"].kill()
    second = machines.dispatcher("other d")
    machines.start("b")
    wait_until(lambda: versions(second.url) == {"a": "v2", "b": "v2"}, SOON_S, "b has a's")
    assert [text(second.url) for _ in range(2)] == [new, new]

    # A directory that only the dispatcher sees will do, and what came before is removed.
    (machines.home("other d") / "v3").symlink_to(models[0])
    told = update(second.url, directory="v3", version="v3")
    assert told.status_code == 200, told.text
    assert versions(second.url) == {"a": "v3", "b": "v3"}
    assert [text(second.url) for _ in range(2)] == [old, old]
    for name in ("a", "b"):
        wait_until(lambda name=name: machines.kept(name) == 1, 30, f"{name} keeps one version")


def test_what_nobody_has_is_refused(machines: Machines) -> None:
    machines.start("a")
    one = machines.dispatcher("d")
    told = update(one.url, directory="nowhere", version="v9")
    assert told.status_code == 404 and "nowhere" in told.text
    assert versions(one.url) == {"a": ""}
