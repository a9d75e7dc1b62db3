"""experts/on_gpu where no GPU is, and what it asks of both programs where one is."""

import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import machine
from benchmarks import record as record_module
from benchmarks.case import Run, load_case
from benchmarks.experts.on_gpu import peer_options, settings
from benchmarks.models.random_model import RandomModel
from inlay.core.overrides import apply_overrides
from inlay.engine import EngineConfig


@pytest.mark.parametrize("options", [[], ["--quick"]])
def test_without_a_gpu_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    record = tmp_path / "record.json"
    monkeypatch.setattr(machine, "gpus", list)
    monkeypatch.setattr(record_module, "RESULTS", tmp_path)
    command = ["benchmarks", "run", "experts/on_gpu", "--json", str(record), *options]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="needs a CUDA device .* no record is written"):
        program.main()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("share", "experts"), [(0.0, 0), (0.25, 16), (1.0, 64)])
def test_each_point_is_a_setting_of_the_engine(share: float, experts: int) -> None:
    case = load_case("experts/on_gpu")
    shape = RandomModel("deepseek-v2-lite", 0).shape
    point = {"gpu_share": share, "deferral": "auto", "graph": "off"}
    config = apply_overrides(EngineConfig(), settings(Run(case=case), shape, point))
    assert config.device == "cuda" and config.placement.gpu_experts == experts
    assert config.experts.deferral == "auto" and config.experts.moves_per_s == 0
    assert config.graph == "off"


def test_the_peer_keeps_the_same_share() -> None:
    """DeepSeek-V2-Lite's first layer is dense and has no experts to keep anywhere."""
    shape = RandomModel("deepseek-v2-lite", 0).shape
    assert shape.layers == 27 and len(shape.sparse_layers) == 26
    on_host = {share: int(peer_options(shape, share)[-1]) for share in (0.0, 0.5, 1.0)}
    assert on_host == {0.0: 27, 0.5: 14, 1.0: 0}
