"""Entries and pieces of a checkpoint, and what several publishers have together."""

import json

import msgspec
import numpy as np
import pytest

from inlay.core.errors import WeightsMismatchError
from inlay.weights.file_layout import FileLayout
from inlay.weights.manifest import Entry, Manifest, piece_size, union


def manifest(*entries: tuple[str, str, tuple[int, ...]], version: str = "1", **box) -> Manifest:
    made, at = [], 0
    for name, dtype, shape in entries:
        made.append(Entry(name=name, dtype=dtype, shape=shape, start=at, **box))
        at += made[-1].size_bytes
    found = Manifest(
        name="m", version=version, piece_bytes=4096, entries=tuple(made), checksums=b""
    )
    return msgspec.structs.replace(found, checksums=bytes(4 * found.num_pieces))


def test_no_piece_reaches_over_two_entries() -> None:
    made = manifest(("a", "F32", (1500,)), ("empty", "F32", (0, 4)), ("b", "BF16", (10,)))
    assert made.sizes_P.tolist() == [4096, 6000 - 4096, 20]
    assert made.starts_P.tolist() == [0, 4096, 6000]
    assert [list(made.pieces_of(n)) for n in range(3)] == [[0, 1], [], [2]]
    assert Manifest.from_bytes(made.to_bytes(), "a peer") == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"checksums": b"1234"}, "1 checksums for 2 pieces"),
        ({"piece_bytes": 100}, "pieces of 100 bytes"),
        ({"entries": (Entry(name="a", dtype="F33", shape=(1,), start=0),)}, "has dtype F33"),
        ({"entries": (Entry(name="a", dtype="F32", shape=(1,), start=8),)}, "begins at 8, not 0"),
        ({"entries": (Entry(name="a", dtype="F32", shape=(1,), start=0, whole=(2, 2)),)}, "no box"),
    ],
)
def test_what_contradicts_itself_is_refused(change, message) -> None:
    made = msgspec.structs.replace(manifest(("a", "F32", (1500,))), **change)
    with pytest.raises(WeightsMismatchError, match=message):
        Manifest.from_bytes(made.to_bytes(), "a peer")
    with pytest.raises(WeightsMismatchError, match="offers no manifest"):
        Manifest.from_bytes(b"\x01", "a peer")


def test_publishers_together_are_the_same_in_any_order() -> None:
    one = manifest(("b", "F32", (2000,)), ("config.json", "", (10,)))
    other = manifest(("a", "F32", (3,)), ("config.json", "", (10,)))
    first, places = union([one, other], ["x", "y"])
    second, _ = union([other, one], ["y", "x"])
    assert first == second
    assert [entry.name for entry in first.entries] == ["a", "b", "config.json"]
    assert places[:2] == ((1, 0), (0, 0))
    assert first.tensor_bytes == 8012 and first.size_bytes == 8022


def test_parts_must_make_up_a_tensor() -> None:
    half = manifest(("a", "F32", (2, 3)), whole=(4, 3), corner=(0, 0))
    rest = manifest(("a", "F32", (2, 3)), whole=(4, 3), corner=(2, 0))
    union([half, rest], ["x", "y"])
    with pytest.raises(WeightsMismatchError, match="hold 6 of 12 elements of a"):
        union([half], ["x"])
    with pytest.raises(WeightsMismatchError, match=r"nobody holds a\[2:4, 0:3\]"):
        union([half, half], ["x", "y"])
    with pytest.raises(WeightsMismatchError, match="publish one version everywhere"):
        union([half, msgspec.structs.replace(rest, version="2")], ["x", "y"])
    other = manifest(("a", "BF16", (2, 3)), whole=(4, 3), corner=(2, 0))
    with pytest.raises(WeightsMismatchError, match="disagree on a: F32 .* and BF16"):
        union([half, other], ["x", "y"])


def test_header_is_that_of_a_safetensors_file() -> None:
    text = FileLayout(manifest(("a", "F32", (2, 3)), ("config.json", "", (10,)))).header
    assert len(text) % 4096 == 0 and int.from_bytes(text[:8], "little") == len(text) - 8
    assert json.loads(text[8:])["a"] == {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def test_fingerprint_follows_the_content() -> None:
    made = manifest(("a", "F32", (4,)))
    entry = msgspec.structs.replace(made.entries[0], digest=b"1" * 16)
    changed = msgspec.structs.replace(made, entries=(entry,))
    assert len({made.fingerprint, changed.fingerprint}) == 2
    assert msgspec.structs.replace(made, version="2").fingerprint == made.fingerprint


def test_pieces_are_few_and_aligned() -> None:
    sizes = [piece_size(size) for size in (1, 1 << 30, 10**10, 10**12)]
    assert sizes == sorted(sizes) and all(size % 4096 == 0 for size in sizes)
    assert sizes[0] == 1 << 20 and sizes[-1] == 16 << 20
    assert np.ceil(10**10 / sizes[2]) <= 4097
