"""Two real processes: this one, and a target that it can stop and kill."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from inlay.kernels import native_problem
from inlay.transfer import TransferConfig, TransferEngine
from tests.integration.transfer.target import TOKEN
from tests.support.pause import pause

ROOT = Path(__file__).parents[3]


class Target:
    """The other process."""

    def __init__(self, *arguments: str, module: str = "target") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"tests.integration.transfer.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.address = self._line().strip()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the target ended"
        return line

    def tell(self, expression: str) -> Any:
        """Evaluates the expression there."""
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return json.loads(self._line())

    def sink_digest(self, start: int, stop: int) -> str:
        code = f"segments['sink'])[{start}:{stop}]).hexdigest()"
        result: str = self.tell(f"__import__('hashlib').blake2b(memoryview({code}")
        return result

    def stop(self) -> None:
        """Returns when all its threads are stopped."""
        pause(self.process.pid)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.go_on()
        self.process.kill()
        self.process.communicate()


@pytest.fixture(autouse=True)
def _needs_extension() -> None:
    if native_problem() is not None:
        pytest.skip(f"needs the extension: {native_problem()}")


@pytest.fixture
def start_target() -> Iterator[Callable[..., Target]]:
    targets: list[Target] = []

    def start(*arguments: str, module: str = "target") -> Target:
        targets.append(Target(*arguments, module=module))
        return targets[-1]

    yield start
    for target in targets:
        target.end()


@pytest.fixture
def target(start_target: Callable[..., Target]) -> Target:
    return start_target()


@pytest.fixture(scope="module")
def shared_target() -> Iterator[Target]:
    """For modules whose tests neither end nor stop it."""
    target = Target()
    yield target
    target.end()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "inlay-test", str(path)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def engine() -> Iterator[TransferEngine]:
    """Over tcp, on which a stopped or dying target is felt at once."""
    with TransferEngine(token=TOKEN, transports=["tcp"], config=TransferConfig()) as engine:
        yield engine
