"""Every example runs as its docstring says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import running_server
from tests.support.tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running_server(None) as server:
        yield server.url


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_example(example: Path, url: str) -> None:
    arguments = [url] if "http://" in example.read_text() else []
    command = [sys.executable, str(example), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_example_is_listed(example: Path) -> None:
    assert f"({example.name})" in (ROOT / "examples" / "README.md").read_text()
