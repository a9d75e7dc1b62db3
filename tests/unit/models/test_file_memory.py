"""What files take of a process's memory while they are read, and afterwards."""

import ctypes
import os
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType as Type

from inlay.models.gguf import gguf_directory
from inlay.models.memory import give_back_freed
from inlay.models.model import load_model
from inlay.models.weight_files import WeightFiles
from tests.support.gguf_files import TOKENIZER, write_gguf
from tests.support.tiny_models import make_tiny_model


def resident(file: Path) -> int:
    """Bytes of a file that are in this process's memory."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, _, value = line.partition(":")
        if " " in key:  # a mapping's first line, which ends with its file
            counts = line.endswith(str(file.resolve()))
        elif key == "Rss" and counts:
            total += 1024 * int(value.split()[0])
    return total


def anonymous() -> int:
    """Bytes of this process's memory that are of no file."""
    _, whole, of_files, *_ = Path("/proc/self/statm").read_text().split()
    return (int(whole) - int(of_files)) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_files_do_not_stay_in_memory(tmp_path: Path, kind: str) -> None:
    sizes = {"hidden_size": 256, "moe_intermediate_size": 256, "num_experts": 64, "head_dim": 64}
    directory = make_tiny_model(tmp_path / "source", tokenizer="none", **sizes)
    file = directory / "model.safetensors"
    if kind == "gguf":
        file = tmp_path / "model.gguf"
        write_gguf(directory, file, Type.F32, metadata=TOKENIZER)
        directory = gguf_directory(file)
    size = file.stat().st_size
    model = load_model(directory, weight_format="int4")
    assert size > 90 << 20 and resident(file) < size // 4
    assert model.loading.missing_bytes == 0


def test_what_was_read_is_given_back(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path, tokenizer="none", vocab_size=20_000)
    file, files = directory / "model.safetensors", WeightFiles(directory)
    name = "model.embed_tokens.weight"
    size = files.view(name).nbytes
    total = files.get(name).sum(dtype=float)
    assert resident(file) > size * 0.9
    files.give_back()
    assert resident(file) < size * 0.1
    assert files.view(name).sum(dtype=float) == total


def test_freed_memory_goes_back_to_the_system() -> None:
    """Small blocks under one that is still held: the allocator keeps them unless it is asked."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    block = 64 << 10
    blocks = [libc.malloc(block) for _ in range(1024)]
    try:
        for address in blocks:
            ctypes.memset(address, 1, block)
    finally:
        for address in blocks[:-1]:
            libc.free(address)
    kept = anonymous()
    give_back_freed()
    assert kept - anonymous() > len(blocks) * block // 2
    libc.free(blocks[-1])
