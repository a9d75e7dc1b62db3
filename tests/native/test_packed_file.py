"""Files of packed weights: what is mapped is what was packed, and damage is refused."""

import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from inlay import kernels
from inlay.core.errors import ArgumentError, ModelFileError
from tests.native.cases import floats, pairs, routing
from tests.support.packed_files import write_packed

METADATA = {"model": "tiny", "layers": 2, "rope": {"theta": 1e6}}


@pytest.fixture
def path(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A file with one entry of each kind."""
    path = tmp_path / "tiny.packed"
    weights = {
        "head": kernels.pack_linear(floats(rng, 130, 100), "int8"),
        "experts": pairs(rng, 3, 70, 50, "int4:g32", bias=True)[0],
        "norm": np.arange(7, dtype=np.float32),
    }
    write_packed(path, weights, METADATA)
    return path


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_weights_come_back_as_they_were(
    tmp_path: Path, rng: np.random.Generator, format: str
) -> None:
    linear = kernels.pack_linear(floats(rng, 130, 100), format)
    experts, _ = pairs(rng, 4, 70, 50, format, bias=True)
    plain, _ = pairs(rng, 1, 33, 40, format)
    weights = {"linear": linear, "experts": experts, "without biases": plain}
    write_packed(tmp_path / "w", weights)
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
    write_packed(tmp_path / "w", arrays, METADATA)
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


def test_parts_are_aligned() -> None:
    layout = kernels.PackedLayout()
    offsets = [
        layout.add_array(str(number), "uint8", (size,))["data"].offset
        for number, size in enumerate((1, 5000, 32 << 20, 1))
    ]
    assert offsets[0] == 4096 and all(offset % 4096 == 0 for offset in offsets)
    assert layout.end == offsets[-1] + 1


@pytest.mark.parametrize("format", kernels.FORMATS)
def test_sizes_follow_from_shapes(rng: np.random.Generator, format: str) -> None:
    """Of weights, and of rows from whole panels on: they lie where their own weight has them."""
    for rows, columns in ((130, 100), (64, 33), (1, 256)):
        weight = kernels.LinearWeight(rows, columns, format)
        assert kernels.linear_bytes(rows, columns, format) == weight.nbytes
    for hidden, width in ((70, 50), (33, 100)):
        experts, _ = pairs(rng, 1, hidden, width, format, bias=True)
        sizes = [panels.nbytes for panels in (*experts.panels(0), experts.biases())]
        assert list(kernels.expert_bytes(hidden, width, format).values()) == sizes
    values = floats(rng, 200, 100)
    end = kernels.pack_linear(np.ascontiguousarray(values[128:]), format).panels().tobytes()
    whole = kernels.pack_linear(values, format).panels().tobytes()
    assert whole[kernels.linear_bytes(128, 100, format) :] == end


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
    with pytest.raises(ModelFileError, match="has layout version 2, this Inlay reads 3; convert"):
        kernels.PackedFile(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"GGUF" + bytes(200))
    with pytest.raises(ModelFileError, match="is not a file of packed weights"):
        kernels.PackedFile(tmp_path / "w")
    with pytest.raises(FileNotFoundError):
        kernels.PackedFile(tmp_path / "none")


def test_names_are_taken_once() -> None:
    layout = kernels.PackedLayout()
    layout.add_array("a", "float32", (1,))
    with pytest.raises(ArgumentError, match="^name: 'a' is in the file already"):
        layout.add_array("a", "float32", (1,))
    with pytest.raises(ArgumentError, match="^array: must be one of float32, .* is float64"):
        layout.add_array("b", "float64", (1,))


def test_a_file_that_ends_before_its_parts_is_not_sealed(tmp_path: Path) -> None:
    layout = kernels.PackedLayout()
    layout.add_array("a", "float32", (1,))
    with (tmp_path / "w").open("w+b") as file:
        with pytest.raises(OSError, match="the file ends at 4096 instead of 4100"):
            layout.seal(file.fileno())


def test_opening_reads_no_weights(tmp_path: Path) -> None:
    """64 MiB of weights are mapped and unused: the process does not grow by them."""
    write_packed(tmp_path / "w", {"big": kernels.LinearWeight(8192, 8192, "int8")})
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
