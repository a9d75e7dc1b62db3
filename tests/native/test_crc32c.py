"""The CRC32C that Python's memory is summed up with."""

import numpy as np
import pytest

from inlay.core.errors import ArgumentError
from inlay.transfer import crc32c


def test_known_sums() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_parts_go_on_from_each_other() -> None:
    memory = np.random.default_rng(0).integers(0, 256, 100_003, np.uint8)
    whole = crc32c(memory)
    for cut in (1, 4096, 77_777):
        assert crc32c(memory[cut:], crc32c(memory[:cut])) == whole
    memory[50_000] ^= 1
    assert crc32c(memory) != whole


def test_only_memory_is_summed() -> None:
    with pytest.raises(ArgumentError):
        crc32c(np.zeros((4, 4))[:, ::2])
    with pytest.raises(ArgumentError):
        crc32c("text")
    with pytest.raises(ArgumentError, match="has no bytes"):
        crc32c(b"")
