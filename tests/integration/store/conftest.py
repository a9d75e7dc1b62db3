"""Stores of real processes."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inlay.store.tenants import read_token
from tests.support.store import StoreProcess, close_all

Start = Callable[..., StoreProcess]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_bytes(os.urandom(32))
    return file


@pytest.fixture
def token(token_file: Path) -> bytes:
    return read_token(token_file)


@pytest.fixture
def start(tmp_path: Path, token_file: Path) -> Iterator[Start]:
    """Start `inlay store ...` with the token; what was started ends with the test."""
    started: list[StoreProcess] = []

    def begin(*args: str) -> StoreProcess:
        process = StoreProcess(tmp_path, *args, "--token-file", str(token_file))
        started.append(process)
        return process

    yield begin
    close_all(started)
