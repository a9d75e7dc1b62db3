"""Headers of safetensors files that say what cannot be."""

import json
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import WeightsError
from inlay.weights.checkpoint_files import read_directory

WELL = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(directory: Path, header: object, size: int = 8) -> Path:
    text = json.dumps(header).encode()
    file = directory / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    return directory


def test_tensors_follow_each_other(tmp_path: Path) -> None:
    empty = {"dtype": "F32", "shape": [0, 3], "data_offsets": [8, 8]}
    scalar = {"dtype": "F32", "shape": [], "data_offsets": [8, 12]}
    header = {"__metadata__": {"a": "b"}, "scalar": scalar, "w": WELL, "empty": empty}
    entries, extents = read_directory(write(tmp_path, header, 12))
    assert [(one.name, one.shape) for one in entries] == [
        ("w", (2,)), ("empty", (0, 3)), ("scalar", ()),
    ]  # fmt: skip
    assert [extent.size for extent in extents] == [12]


@pytest.mark.parametrize(
    "wrong",
    [
        {"data_offsets": offsets}
        for offsets in (
            [0], [], [0, 4, 8], "ab", {"a": 1}, [None, 8], ["0", 8], [-8, 0], [0.0, 8.0], [8, 0],
            [False, 8], 5, [8, 16], [0, 1 << 70],
        )
    ]
    + [{"shape": shape} for shape in ([-1, -2], [2.7], "2", None, [1 << 70], [3])]
    + [{"dtype": "F7"}],
)  # fmt: skip
def test_a_wrong_entry_is_named(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        read_directory(write(tmp_path, {"w": WELL | wrong}))


@pytest.mark.parametrize("header", [[], 55, {"w": 5}, {"w": {"dtype": "F32"}}])
def test_a_wrong_header_is_named(tmp_path: Path, header: object) -> None:
    with pytest.raises(WeightsError, match="damaged header"):
        read_directory(write(tmp_path, header))


def test_tensors_do_not_overlap(tmp_path: Path) -> None:
    header = {"w": WELL, "v": WELL | {"data_offsets": [4, 12]}}
    with pytest.raises(WeightsError, match=r"v has data_offsets \[4, 12\].*end at 8"):
        read_directory(write(tmp_path, header, 12))


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "index.json, line 1: is no JSON"),
        ('{"weight_map": {"a": 1}}', "does not give a file name for each tensor"),
        ('{"weight_map": {"a": "../b.safetensors"}}', "names files outside the directory"),
        ('{"weight_map": {"a": "model.safetensors", "b": "c.safetensors"}}', "lacks 1 of 2"),
    ],
)
def test_a_wrong_index_is_named(tmp_path: Path, index: str, message: str) -> None:
    (write(tmp_path, {"w": WELL}) / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match=message):
        read_directory(tmp_path)


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_text("version https://git-lfs.github.com/spec/v1\nsize 123456\n")
    with pytest.raises(WeightsError, match=r"model\.safetensors is a pointer of Git LFS"):
        read_directory(tmp_path)
