"""The CRC32C that Python's memory is summed up with."""

import numpy as np
import pytest

from inlay.core.errors import ArgumentError
from inlay.transfer import Op, Ranges, TransferEngine, crc32c, crc32c_of_parts


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


def test_sums_of_parts_are_joined() -> None:
    memory = np.random.default_rng(1).integers(0, 256, 70_001, np.uint8)
    ends = np.array([0, 1, 4097, 4097, 66_000, len(memory)])
    parts = [memory[start:end] for start, end in zip(ends[:-1], ends[1:], strict=True)]
    sums = np.array([crc32c(part) if len(part) else 0 for part in parts], np.uint32)
    assert crc32c_of_parts(sums, np.diff(ends)) == crc32c(memory)
    assert crc32c_of_parts(sums[:0], np.diff(ends)[:0]) == 0
    with pytest.raises(ArgumentError, match="must not be negative"):
        crc32c_of_parts(sums[:1], np.array([-1]))
    with pytest.raises(ArgumentError):
        crc32c_of_parts(sums, np.diff(ends)[:2])
    with pytest.raises(ArgumentError):
        crc32c_of_parts(sums.astype(np.int64), np.diff(ends))


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize("size", [5000, 3_000_001])
def test_bytes_are_summed_as_they_pass(transport: str, size: int) -> None:
    content = np.random.default_rng(2).integers(0, 256, size, np.uint8)
    with (
        TransferEngine(transports=[transport]) as source,
        TransferEngine(transports=[transport]) as target,
    ):
        np.frombuffer(memoryview(source.allocate(size, name="x")), np.uint8)[:] = content
        local, remote = target.allocate(size), target.connect(source.address)["x"]
        cuts = np.array([0, 1000, size - 100])
        order = [2, 0, 1]  # sums go by the order of ranges, not of bytes
        lengths = np.diff([*cuts, size])
        moves = [Ranges(Op.READ, local, remote, cuts[order], cuts[order], lengths[order])]
        batch = target.submit(moves, checksum=True)
        batch.wait()
        parts = [content[cuts[n] : cuts[n] + lengths[n]] for n in order]
        assert batch.checksum(0) == crc32c(np.concatenate(parts))
        unsummed = target.submit(moves)
        unsummed.wait()
        assert unsummed.checksum(0) is None
        with pytest.raises(IndexError):
            batch.checksum(1)


def test_only_memory_is_summed() -> None:
    with pytest.raises(ArgumentError):
        crc32c(np.zeros((4, 4))[:, ::2])
    with pytest.raises(ArgumentError):
        crc32c("text")
    with pytest.raises(ArgumentError, match="has no bytes"):
        crc32c(b"")
