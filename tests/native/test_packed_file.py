"""Files of packed weights: what is mapped is what was packed, and damage is refused."""

import errno
import os
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError, ModelFileError
from tests.native.cases import floats, pairs, routing

METADATA = {"model": "tiny", "layers": 2, "rope": {"theta": 1e6}}


@pytest.fixture
def path(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A file with one entry of each kind."""
    path = tmp_path / "tiny.packed"
    with kernels.PackedWriter(path, METADATA) as writer:
        writer.add_linear("head", kernels.pack_linear(floats(rng, 130, 100), "int8"))
        writer.add_experts("experts", pairs(rng, 3, 70, 50, "int4:g32", bias=True)[0])
        writer.add_array("norm", np.arange(7, dtype=np.float32))
    return path


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_weights_come_back_as_they_were(
    tmp_path: Path, rng: np.random.Generator, format: str
) -> None:
    linear = kernels.pack_linear(floats(rng, 130, 100), format)
    experts, _ = pairs(rng, 4, 70, 50, format, bias=True)
    plain, _ = pairs(rng, 1, 33, 40, format)
    with kernels.PackedWriter(tmp_path / "w") as writer:
        writer.add_linear("linear", linear)
        writer.add_experts("experts", experts)
        writer.add_experts("without biases", plain)
    file = kernels.PackedFile(tmp_path / "w")
    file.verify()
    assert file.names == ["linear", "experts", "without biases"]
    x, ids_weights = floats(rng, 9, 100), routing(rng, 9, 4, 2)
    out, expected = np.empty((9, 130), np.float32), np.empty((9, 130), np.float32)
    kernels.linear(x, linear, expected)
    kernels.linear(x, file.linear("linear"), out)
    assert np.array_equal(out, expected)
    mapped = file.experts("experts")
    assert (mapped.format, mapped.num_experts, mapped.nbytes) == (format, 4, experts.nbytes)
    out, expected = np.empty((9, 70), np.float32), np.empty((9, 70), np.float32)
    kernels.moe(x[:, :70], experts, *ids_weights, expected)
    kernels.moe(x[:, :70], mapped, *ids_weights, out)
    assert np.array_equal(out, expected)
    assert file.experts("without biases").biases() is None


def test_arrays_and_metadata_come_back(tmp_path: Path) -> None:
    arrays = {
        dtype: np.arange(12).reshape(3, 4).astype(dtype)
        for dtype in ("float32", "uint16", "int8", "uint8", "int32", "int64")
    }
    arrays["strided"] = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    arrays["empty"] = np.empty((0, 4), np.float32)
    arrays["scalar"] = np.array(3, np.int32)
    with kernels.PackedWriter(tmp_path / "w", METADATA) as writer:
        for name, array in arrays.items():
            writer.add_array(name, array)
    file = kernels.PackedFile(tmp_path / "w")
    assert file.metadata == METADATA
    for name, array in arrays.items():
        back = file.array(name)
        assert back.dtype == array.dtype and np.array_equal(back, array)
        assert not back.flags.writeable
    assert file.nbytes == (tmp_path / "w").stat().st_size


def test_weights_keep_the_mapping(path: Path, rng: np.random.Generator) -> None:
    file = kernels.PackedFile(path)
    head, norm = file.linear("head"), file.array("norm")
    values = head.dequantize()
    del file
    path.unlink()
    assert np.array_equal(head.dequantize(), values) and norm[6] == 6


def test_mapped_weights_cannot_be_changed(path: Path, rng: np.random.Generator) -> None:
    file = kernels.PackedFile(path)
    with pytest.raises(ArgumentError, match="mapped from a file and cannot be changed"):
        file.linear("head").set_rows(0, floats(rng, 1, 100))
    with pytest.raises(ArgumentError, match="mapped from a file and cannot be changed"):
        file.experts("experts").set(
            0, floats(rng, 50, 70), floats(rng, 50, 70), floats(rng, 70, 50)
        )


def test_wrong_names(path: Path) -> None:
    file = kernels.PackedFile(path)
    with pytest.raises(ArgumentError, match="holds nothing under 'tail'"):
        file.linear("tail")
    with pytest.raises(ArgumentError, match="holds array, not linear, under 'norm'"):
        file.linear("norm")


def test_parts_are_aligned(tmp_path: Path) -> None:
    with kernels.PackedWriter(tmp_path / "w") as writer:
        for size in (1, 5000, 32 << 20, 1):
            writer.add_array(str(size) + str(writer._end), np.zeros(size, np.uint8))
    file = kernels.PackedFile(tmp_path / "w")
    offsets = [entry.parts["data"].offset for entry in file._table.entries.values()]
    assert offsets[0] == 4096 and all(offset % 4096 == 0 for offset in offsets)


def test_every_cut_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 40, 63, 64, 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        reason = "is not a file of packed weights" if length == 0 else "is truncated"
        with pytest.raises(ModelFileError, match=reason):
            kernels.PackedFile(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(ModelFileError, match=f"has bytes added: it holds {len(whole) + 1} bytes"):
        kernels.PackedFile(path)


def test_every_flipped_byte_of_preamble_and_table_is_refused(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    table = struct.unpack_from("<Q", whole, 24)[0]
    for at in [*range(64), table, table + 30, len(whole) - 1]:
        damaged = whole.copy()
        damaged[at] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(ModelFileError, match="damaged|not a file of packed|layout version"):
            kernels.PackedFile(path)


def test_damaged_weights_are_found(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    parts = [
        (name, key, part)
        for name, entry in kernels.PackedFile(path)._table.entries.items()
        for key, part in entry.parts.items()
    ]
    assert [key for _, key, _ in parts] == ["panels", "gate_up", "down", "biases", "data"]
    for name, key, part in parts:
        for at in (part.offset, part.offset + part.size - 1):
            damaged = whole.copy()
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(ModelFileError, match=rf"bytes of '{name}' \({key}\)"):
                kernels.PackedFile(path).verify()


def test_another_version_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.kernels._packed_file.VERSION", 3)
    with pytest.raises(ModelFileError, match="has layout version 2, this Inlay reads 3; pack the"):
        kernels.PackedFile(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(ModelFileError, match="is not a file of packed weights"):
        kernels.PackedFile(tmp_path / "w")
    with pytest.raises(FileNotFoundError):
        kernels.PackedFile(tmp_path / "none")


def test_a_failed_write_leaves_what_was_there(path: Path, rng: np.random.Generator) -> None:
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), kernels.PackedWriter(path) as writer:
        writer.add_array("norm", np.ones(3, np.float32))
        assert path.read_bytes() == before
        raise ZeroDivisionError
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


@pytest.fixture
def writing(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has written a part of the file again."""
    code = f"""
import numpy as np
from inlay import kernels
writer = kernels.PackedWriter({str(path)!r})
writer.add_array("new", np.ones(5000, np.uint8))
print("writing", flush=True)
input()
writer.close()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "writing\n"
        yield process
        process.kill()


def test_what_a_killed_writer_left_is_removed(path: Path, writing: subprocess.Popen[str]) -> None:
    writing.kill()
    writing.wait()
    partial = path.with_name(f".{path.name}.partial")
    assert partial.stat().st_size > 5000
    with kernels.PackedWriter(path) as writer:
        assert partial.stat().st_size == 0
        writer.add_array("norm", np.ones(3, np.float32))
    kernels.PackedFile(path).verify()
    assert os.listdir(path.parent) == [path.name]


def test_a_file_has_one_writer_at_a_time(path: Path, writing: subprocess.Popen[str]) -> None:
    with pytest.raises(ArgumentError, match=r"^path: another writer is writing .*tiny\.packed"):
        kernels.PackedWriter(path)
    writing.communicate("\n")
    assert kernels.PackedFile(path).names == ["new"]
    with kernels.PackedWriter(path) as writer:
        writer.add_array("norm", np.ones(3, np.float32))
    assert kernels.PackedFile(path).names == ["norm"]


def test_a_closed_writer_writes_no_more(tmp_path: Path) -> None:
    with kernels.PackedWriter(tmp_path / "w") as writer:
        writer.add_array("norm", np.ones(3, np.float32))
        writer.close()
        writer.abort()
    assert kernels.PackedFile(tmp_path / "w").names == ["norm"]
    with pytest.raises(OSError, match="Bad file descriptor"):
        writer.add_array("late", np.ones(3, np.float32))


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    """A limit on file sizes stands for the full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(OSError) as raised, kernels.PackedWriter(tmp_path / "w") as writer:
            writer.add_array("large", np.zeros(1 << 17, np.uint8))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert raised.value.errno == errno.EFBIG
    assert not os.listdir(tmp_path)


def test_names_are_taken_once(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="^name: 'a' is in the file already"):
        with kernels.PackedWriter(tmp_path / "w") as writer:
            writer.add_array("a", np.ones(1, np.float32))
            writer.add_array("a", np.ones(1, np.float32))
    with pytest.raises(ArgumentError, match="^array: must be one of float32, .* is float64"):
        with kernels.PackedWriter(tmp_path / "w") as writer:
            writer.add_array("a", np.ones(1))


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    """64 MiB of weights are mapped and unused: the process does not grow by them."""
    with kernels.PackedWriter(tmp_path / "w") as writer:
        writer.add_linear("big", kernels.LinearWeight(8192, 8192, "int8"))
    code = f"""
import numpy as np
from inlay import kernels
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before = resident()
weight = kernels.PackedFile({str(tmp_path / "w")!r}).linear("big")
opened = resident()
assert not weight.dequantize()[-1, -1]
print(opened - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 4 << 20


def test_references_read_the_same_file(path: Path) -> None:
    """Files do not depend on who packed them."""
    code = f"""
import numpy as np
from inlay import kernels
file = kernels.PackedFile({str(path)!r})
assert kernels.native_problem()
print(repr(float(file.linear("head").dequantize().sum(dtype=np.float64))))
print(repr(float(file.experts("experts").dequantize(2)[2].sum(dtype=np.float64))))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "INLAY_NATIVE": "0"},
    )
    assert done.returncode == 0, done.stderr
    file = kernels.PackedFile(path)
    head = file.linear("head").dequantize().sum(dtype=np.float64)
    down = file.experts("experts").dequantize(2)[2].sum(dtype=np.float64)
    assert [float(line) for line in done.stdout.split()] == [head, down]
