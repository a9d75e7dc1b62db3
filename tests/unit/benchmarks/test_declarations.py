"""What a case file has to say of what it measures and needs."""

import re
from pathlib import Path

import pytest

from benchmarks import machine, needs, peers
from benchmarks.case import CaseError, load_declaration, measured_paths
from benchmarks.kinds import is_kind, kind_of

REST = """
[[measurements]]
name = "x"
unit = "s"
better = "lower"
"""


@pytest.fixture(autouse=True)
def cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for case files."""
    monkeypatch.setattr("benchmarks.case.CASES", tmp_path)
    (tmp_path / "area").mkdir()
    return tmp_path


def declare(cases: Path, text: str) -> None:
    (cases / "area" / "case.toml").write_text(f'about = "a case of the tests"\n{text}\n{REST}')


def test_a_record_ages_with_what_the_case_measures_and_its_own_files(cases: Path) -> None:
    declare(cases, 'measures = ["native/net", "src/inlay/__init__.py"]\nrunner = "other"')
    assert measured_paths("area/case") == [
        "native/net",
        "src/inlay/__init__.py",
        "benchmarks/area/case.toml",
        "benchmarks/area/other.py",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "area/case.toml: measures is missing: list the paths"),
        ("measures = []", "measures is missing"),
        ('measures = ["native/nett"]', "native/nett, which the repository does not have"),
        ('measures = ["/native/net"]', "'/native/net': write it relative to the repository"),
        ('measures = ["native/net/"]', "'native/net/': write it relative"),
        ('measures = ["native/../native"]', "write it relative"),
        ('measures = ["native"]\nneeds = ["gpus"]', "'gpus', allowed: gpu, netns, .*peers:VALUE"),
        ('measures = ["native"]\nneeds = ["gpu:2"]', "'gpu:2', allowed"),
        ('measures = ["native"]\nneeds = ["peers"]', "'peers', allowed"),
        ('measures = ["native"]\nneeds = ["peers:"]', "'peers:', allowed"),
        ('measures = ["native"]\nneeds = ["gib:much"]', "'gib:much': the value is a number"),
        (
            'measures = ["native"]\nneeds = ["kind:avx3"]',
            "'kind:avx3', kinds are: amx, avx512_bf16",
        ),
    ],
)
def test_what_a_declaration_must_say(cases: Path, text: str, problem: str) -> None:
    declare(cases, text)
    with pytest.raises(CaseError, match=problem):
        load_declaration("area/case")


@pytest.mark.parametrize(
    ("isa", "kind"),
    [
        ("avx2_vnni", "avx2"),
        ("avx512", "avx512"),
        ("avx512_vnni", "avx512"),
        ("avx512_bf16", "avx512_bf16"),
        ("amx", "amx"),
    ],
)
def test_finer_instruction_sets_are_of_one_kind(isa: str, kind: str) -> None:
    assert kind_of({"isa": isa, "gpus": ["NVIDIA H200"]}, on_gpu=False) == kind


def test_every_instruction_set_has_a_kind() -> None:
    assert all(is_kind(kind_of({"isa": isa}, on_gpu=False)) for isa in machine.ISA_FLAGS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "gpu-h200"),
        ("NVIDIA GeForce RTX 4090", "gpu-geforce-rtx-4090"),
        ("NVIDIA A100-SXM4-80GB", "gpu-a100-sxm4-80gb"),
        ("AMD Instinct MI300X", "gpu-instinct-mi300x"),
    ],
)
def test_the_kind_of_a_gpu_is_its_name(name: str, kind: str) -> None:
    assert kind_of({"isa": "amx", "gpus": [name, "another"]}, on_gpu=True) == kind
    assert is_kind(kind)


def test_what_is_no_kind() -> None:
    assert not any(map(is_kind, ["", "avx512_vnni", "gpu-", "gpu-H200", "cpu"]))


def test_what_is_here_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: ["NVIDIA H200"])
    monkeypatch.setattr(needs, "netns_problem", lambda: None)
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    (tmp_path / "built").mkdir()
    here = kind_of(machine.machine(), on_gpu=False)
    found = ("gpu", "netns", "peers:built", "package:json", "program:sh", "file:native", "gib:0.1")
    assert needs.missing((*found, "disk_gib:0.001", f"kind:{here}"), tmp_path) == []


@pytest.mark.parametrize(
    ("need", "folder", "reason"),
    [
        ("gpu", None, "no CUDA device"),
        ("netns", None, "shaped network links: no tc"),
        ("peers:absent", None, "the peer absent: --peers DIR is not given"),
        ("peers:absent", Path("scripts"), "absent: its environment .*absent is not built"),
        ("package:no_such_package", None, "the Python package no_such_package"),
        ("program:no-such-program", None, "the program no-such-program"),
        ("file:no/such", None, "the file no/such"),
        ("gib:100000", None, "100000 GiB of free memory; there are"),
        ("disk_gib:100000000", None, "100000000 GiB of disk in .*TMPDIR"),
        ("kind:scalar", None, "a processor of kind scalar; this one is"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: str, folder: Path | None, reason: str
) -> None:
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(needs, "netns_problem", lambda: "no tc")
    monkeypatch.setattr(peers, "ENVIRONMENTS", tmp_path)
    (found,) = needs.missing((need,), folder)
    assert re.search(reason, found), found
