"""experts/on_gpu where no GPU is, and what it asks of both programs where one is."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import machine
from benchmarks import record as record_module
from benchmarks.case import Run, load_case
from benchmarks.experts.on_gpu import (
    Machine,
    Way,
    beside,
    decode_limit,
    measure_way,
    model_of,
    peer_options,
    points_by_way,
    prefill_limit,
    settings,
    write_model,
)
from benchmarks.kernels.gpu_limits import GpuLimits
from benchmarks.models.random_model import RandomModel
from benchmarks.triples import Samples
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


WAY = Way("qwen3-30b-a3b", 48, 0.5, "off", "auto", 512)


@pytest.mark.parametrize(("share", "experts"), [(0.0, 0), (0.25, 16), (1.0, 64)])
def test_each_way_is_settings_of_the_engine(share: float, experts: int) -> None:
    run = Run(case=load_case("experts/on_gpu"))
    shape = RandomModel("deepseek-v2-lite", 0).shape
    chosen = settings(run, replace(WAY, gpu_share=share), shape, "cuda:0")
    config = apply_overrides(EngineConfig(), chosen)
    assert config.placement.gpu_experts == experts
    assert config.experts.deferral == "auto" and config.experts.moves_per_s == 0
    assert config.graph == "off"
    assert settings(run, WAY, shape, "cpu") == []


def test_the_peer_keeps_the_same_share() -> None:
    """DeepSeek-V2-Lite's first layer is dense and has no experts to keep anywhere."""
    shape = RandomModel("deepseek-v2-lite", 0).shape
    assert shape.layers == 27 and len(shape.sparse_layers) == 26
    on_host = {share: int(peer_options(shape, share)[-1]) for share in (0.0, 0.5, 1.0)}
    assert on_host == {0.0: 27, 0.5: 14, 1.0: 0}


def test_a_model_is_loaded_once_for_each_way() -> None:
    """All cells of a way come together, and the whole model's ways before those that compare."""
    ways = points_by_way(Run(case=load_case("experts/on_gpu")))
    assert [way.layers for way in ways][:4] == [48] * 4
    assert len({tuple(vars(way).values()) for way in ways}) == len(ways)
    whole = ways[Way("qwen3-30b-a3b", 48, 1.0, "auto", "0", 512)]
    assert [(p["streams"], p["prompt"]) for p in whole] == [
        (1, 512), (4, 512), (16, 512), (64, 64), (1, 4096),
    ]  # fmt: skip


MACHINE = Machine("cuda:0", GpuLimits(copy_gbs=4258, products_tflops=783, link_gbs=54.6), 200.0)


def test_prompts_wait_for_the_link_where_the_host_has_experts() -> None:
    """17 GB of experts for 512 tokens over 54.6 GB/s, half of them where half are there."""
    run = Run(case=load_case("experts/on_gpu"))
    shape = model_of(run, "qwen3-30b-a3b", 48).shape
    point = {"streams": 1, "prompt": 512}
    rates = {}
    for share in (0.0, 0.5, 1.0):
        limit = prefill_limit(run, replace(WAY, gpu_share=share), point, shape, MACHINE)
        rates[share] = limit and limit[1]
    experts_gb = 48 * 128 * 3 * 2048 * 768 * 0.5625 / 1e9
    assert rates[0.0] == pytest.approx(512 * 54.6 / experts_gb)
    assert rates[0.5] == pytest.approx(2 * rates[0.0]) and rates[1.0] is None
    # A step has at most two chunks, of however many streams.
    many = {"streams": 16, "prompt": 512}
    limit = prefill_limit(run, replace(WAY, gpu_share=0.0), many, shape, MACHINE)
    assert limit is not None and limit[1] == pytest.approx(2 * rates[0.0])


def test_steps_wait_for_the_slower_memory() -> None:
    run = Run(case=load_case("experts/on_gpu"))
    shape = model_of(run, "qwen3-30b-a3b", 48).shape
    point = {"streams": 1, "prompt": 512}
    found = {
        share: decode_limit(run, replace(WAY, gpu_share=share), point, shape, MACHINE)[1]
        for share in (0.0, 0.5, 1.0)
    }
    experts_gb = 48 * 8 * 3 * 2048 * 768 * 0.5625 / 1e9
    assert found[0.0] == pytest.approx(200.0 / experts_gb)
    assert found[0.5] == pytest.approx(2 * found[0.0])
    # Attention and the output matrix in a byte a weight; cached tokens and the router beside them.
    others_gb = (48 * 2 * 2048 * (4096 + 512) + 151936 * 2048) / 1e9
    assert 4258 / found[1.0] == pytest.approx(experts_gb + others_gb, rel=0.05)


def test_a_batch_gives_what_the_case_declares(tmp_path: Path) -> None:
    """On a CPU, with a model of two small layers."""
    case = load_case("experts/on_gpu")
    changed = {
        "hidden_size": 128, "moe_intermediate_size": 64, "num_experts": 8, "vocab_size": 512,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
    }  # fmt: skip
    case = replace(case, quick_workload={**case.quick_workload, "changed": changed})
    run = Run(case=case, quick=True)
    model = model_of(run, "qwen3-30b-a3b", 2)
    folder = write_model(run, model, tmp_path)
    way, points = next(iter(points_by_way(run).items()))
    found = list(measure_way(run, way, points, model.shape, folder, replace(MACHINE, device="cpu")))
    assert {samples.name for samples in found} == {
        "load_s", "prefill_tokens_per_s", "first_prefill_tokens_per_s", "decode_tokens_per_s",
        "step_ms", "worst_step_ms", "worst_step_over_median",
    }  # fmt: skip
    for samples in found:
        run.case.declared(samples.name, samples.params)  # raises, if it does not
        assert all(value > 0 for value in samples.values)
    of_cell = {samples.name: samples for samples in found if samples.params.get("streams") == 1}
    steps = of_cell["decode_tokens_per_s"].values
    assert len(steps) == run.workload["output_tokens"]
    assert of_cell["step_ms"].values == pytest.approx([1e3 / rate for rate in steps])
    assert of_cell["worst_step_over_median"].values[0] >= 1


def test_the_peer_stands_beside_its_own_prompts() -> None:
    run = Run(case=load_case("experts/on_gpu"))
    rates = {1: {"prefill_tokens_per_s": 900.0, "decode_tokens_per_s": 94.0}}
    peers = {0.5: ("llama.cpp", rates)}

    def peers_of(name: str, **params: object) -> object:
        found = Samples(name=name, values=[1.0, 2.0], params=params)
        return beside(run, found, peers).peers

    cell = {"streams": 1, "prompt": 512, "gpu_share": 0.5}
    assert peers_of("decode_tokens_per_s", **cell) == {"llama.cpp": [94.0, 94.0]}
    assert peers_of("prefill_tokens_per_s", **cell) == {"llama.cpp": [900.0, 900.0]}
    assert peers_of("step_ms", **cell) == {}
    for other in ({"streams": 4}, {"prompt": 4096}, {"gpu_share": 1.0}):
        assert peers_of("decode_tokens_per_s", **cell | other) == {}
