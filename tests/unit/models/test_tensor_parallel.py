"""Models whose layers several ranks share: the same answers as one process."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type

from inlay.core.errors import ConfigError, RankLostError, UnsupportedModelError
from inlay.core.placement import LayerPlacement, Placement
from inlay.models.conversion.convert import convert
from inlay.models.fake_device import FakeDevice, FakeOps
from inlay.models.host_share import ShareConfig
from inlay.models.model import Model, load_model
from inlay.models.rank_group import RankGroup
from tests.support.gguf_files import gguf_and_floats
from tests.support.model_driver import ModelDriver
from tests.support.quantized_files import quantize_files
from tests.support.rank_threads import in_ranks
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter
from tests.unit.models.reference import relative_error

TOKENS = [7, 99, 3, 250, 17, 42, 8, 77, 310, 5]
# What two and three ranks can share.
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 6, "num_key_value_heads": 6},
    "qwen3_moe": {"num_attention_heads": 6, "num_key_value_heads": 1, "moe_intermediate_size": 48},
    "deepseek_v3": {
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "moe_intermediate_size": 48,
    },
    "deepseek_v2": {
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "moe_intermediate_size": 48,
        "attention_bias": True,
    },
    "glm4_moe": {"num_attention_heads": 12, "num_key_value_heads": 6, "moe_intermediate_size": 48},
    "gpt_oss": {"num_attention_heads": 12, "num_key_value_heads": 6},
}


def tiny(path: Path, architecture: str = "qwen3_moe", **changes: object) -> Path:
    sizes = SIZES[architecture] | {"num_hidden_layers": 3} | changes
    return make_tiny_model(path, architecture, tokenizer="none", **sizes)


def on_cpu(directory: Path, group: RankGroup, **more: Any) -> Model:
    return load_model(directory, weight_format="float32", group=group, **more)


def on_devices(directory: Path, group: RankGroup, resident: int, **more: Any) -> Model:
    """Each rank has a device; the first has the host's experts."""
    device = f"fake:{group.rank.number}"
    layer = LayerPlacement(device=device, resident=resident)
    return on_cpu(
        directory,
        group,
        placement=Placement(layers=(layer,) * 3),
        backends={device: FakeOps(device, FakeDevice())},
        **more,
    )


def answers(model: Model, group: RankGroup | None = None) -> tuple[list[torch.Tensor], list[int]]:
    """Of prompts whole and in chunks, of a token that decodes, and of greedy decoding."""
    driver = ModelDriver(model)
    if group is not None:
        share_steps(model, group)
    logits = [driver.prefill(TOKENS), driver.prefill(TOKENS, (4, 3))]
    sequence = driver.add(TOKENS)
    driver.step([(sequence, len(TOKENS) - 1)])
    logits += driver.step([(sequence, 1)])
    return logits, driver.greedy(TOKENS, 8)


def share_steps(model: Model, group: RankGroup) -> None:
    """Tests drive each rank alone: have them all see the logits that the first one has."""
    forward = model.forward

    def shared(*args: Any) -> torch.Tensor:
        logits_RV = torch.as_tensor(forward(*args))
        if not group.rank.is_first:
            assert logits_RV.shape[1] == 0
            logits_RV = torch.zeros(len(logits_RV), model.shape.vocab)
        logits_RV = logits_RV.clone()
        group.sum(logits_RV)
        return logits_RV

    model.forward = shared  # type: ignore[method-assign]


def check(directory: Path, degree: int, load: Any, **more: Any) -> None:
    single = load_model(directory, weight_format="float32", **more)
    wanted, wanted_tokens = answers(single)
    for logits, tokens in in_ranks(degree, lambda group: answers(load(group), group)):
        for actual, expected in zip(logits, wanted, strict=True):
            assert relative_error(actual, expected) < 1e-4
        assert tokens == wanted_tokens


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("architecture", SIZES)
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_ranks_give_the_answers_of_one_process(
    tmp_path: Path, architecture: str, degree: int, backend: str
) -> None:
    directory = tiny(tmp_path, architecture, vocab_size=510 + degree)
    check(directory, degree, lambda group: on_cpu(directory, group, backend=backend))


@pytest.mark.parametrize("resident", [0, 3])
@pytest.mark.parametrize(
    ("architecture", "degree"), [("qwen3_moe", 3), ("deepseek_v3", 2), ("gpt_oss", 2)]
)
def test_the_first_rank_has_the_experts_of_the_host(
    tmp_path: Path, architecture: str, degree: int, resident: int
) -> None:
    directory = tiny(tmp_path, architecture)
    check(directory, degree, lambda group: on_devices(directory, group, resident))


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_experts_in_one_tensor(tmp_path: Path, backend: str) -> None:
    directory = tiny(tmp_path, expert_names="fused")
    check(directory, 2, lambda group: on_cpu(directory, group, backend=backend))


def test_deferral_is_the_first_ranks(tmp_path: Path) -> None:
    directory, later = tiny(tmp_path, num_experts_per_tok=5), ShareConfig(deferred=2)
    check(directory, 2, lambda group: on_devices(directory, group, 0, sharing=later), sharing=later)
    exact, changed = (
        answers(load_model(directory, weight_format="float32", sharing=one))[0][-1]
        for one in (ShareConfig(), later)
    )
    assert relative_error(changed, exact) > 1e-3


@pytest.mark.parametrize("degree", [2, 3])
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "deepseek_v2", "deepseek_v3"])
def test_adapters(tmp_path: Path, architecture: str, backend: str, degree: int) -> None:
    """Each rank adds its part of every pair."""
    directory = tiny(tmp_path / "model", architecture)
    check_adapter(
        directory, tmp_path, degree, lambda group: on_cpu(directory, group, backend=backend)
    )


@pytest.mark.parametrize("sharing", [{}, {"stream": 4, "stream_bytes": 150_000}])
@pytest.mark.parametrize("resident", [0, 3])
def test_adapters_of_the_hosts_experts(
    tmp_path: Path, resident: int, sharing: dict[str, int]
) -> None:
    """The first rank's host adds whole pairs, devices their parts."""
    directory, shared = tiny(tmp_path / "model"), ShareConfig(**sharing)
    check_adapter(
        directory, tmp_path, 2, lambda group: on_devices(directory, group, resident, sharing=shared)
    )


def check_adapter(
    directory: Path, folder: Path, degree: int, load: Callable[[RankGroup], Model]
) -> None:
    """A prompt with an adapter beside one without, and tokens behind them."""
    adapter = make_adapter(directory, folder / "adapter")

    def changed(model: Model, group: RankGroup | None = None) -> list[torch.Tensor]:
        if group is not None:
            share_steps(model, group)
        driver, part = ModelDriver(model), model.load_adapter(adapter)
        running = [driver.add(TOKENS, adapter=part), driver.add(TOKENS)]
        prompts = driver.step([(one, len(TOKENS)) for one in running], all_rows=True)
        for one in running:
            one.tokens.append(9)
        return [*prompts, *driver.step([(one, 1) for one in running])]

    wanted = changed(load_model(directory, weight_format="float32"))
    assert relative_error(wanted[0], wanted[1]) > 1e-2
    for found in in_ranks(degree, lambda group: changed(load(group), group)):
        for actual, expected in zip(found, wanted, strict=True):
            assert relative_error(actual, expected) < 1e-4


QUANTIZED: dict[str, tuple[str, dict[str, Any]]] = {
    "fp8": ("qwen3_moe", {"num_attention_heads": 16, "moe_intermediate_size": 256}),
    "int4": ("deepseek_v3", {"moe_intermediate_size": 64}),
    "awq": ("qwen3_moe", {"num_attention_heads": 8, "moe_intermediate_size": 64}),
    "mxfp4": ("gpt_oss", {"intermediate_size": 64}),
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_groups_of_quantised_files_stay_whole(tmp_path: Path, method: str) -> None:
    architecture, sizes = QUANTIZED[method]
    source = make_tiny_model(
        tmp_path / "source", architecture, tokenizer="none", num_hidden_layers=3, **sizes
    )
    files = tmp_path / "quantized"
    quantize_files(source, files, tmp_path / "floats", method)
    check(files, 2, lambda group: on_cpu(files, group))
    check(files, 2, lambda group: on_devices(files, group, 3))
    (refusal,) = set(in_ranks(4, lambda group: refused(files, group)))
    assert "that share a scale; possible are 1, 2" in refusal


def refused(directory: Path, group: RankGroup, **more: Any) -> str:
    with pytest.raises((ConfigError, UnsupportedModelError)) as caught:
        on_cpu(directory, group, **more)
    return str(caught.value)


def test_what_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    directory = tiny(tmp_path / "tiny", "gpt_oss")
    (message,) = set(in_ranks(5, lambda group: refused(directory, group)))
    assert message == (
        "placement.tensor_parallel=5 does not divide this model: its 12 heads; possible are "
        "1, 2, 3, 6, 12"
    )
    convert(directory, tmp_path / "packed", weight_format="int8")
    (message,) = set(in_ranks(2, lambda group: refused(tmp_path / "packed", group)))
    assert "weights.inlay holds whole matrices" in message
    devices = ["fake:0", "fake:0", "fake:1"]
    two = {
        "placement": Placement(layers=tuple(LayerPlacement(device=name) for name in devices)),
        "backends": {name: FakeOps(name, FakeDevice()) for name in devices},
    }
    for message in in_ranks(2, lambda group: refused(directory, group, **two)):
        assert "layers on fake:0, fake:1, and with placement.tensor_parallel" in message


def test_pages_say_whose_part_they_have(tmp_path: Path) -> None:
    directory = tiny(tmp_path, "gpt_oss")
    whole = load_model(directory).kv_format()
    parts = in_ranks(3, lambda group: on_cpu(directory, group).kv_format())
    assert [(part.tp_degree, part.tp_rank) for part in parts] == [(3, 0), (3, 1), (3, 2)]
    assert sum(part.page_bytes for part in parts) == whole.page_bytes


def test_a_late_rank_is_not_waited_for_for_ever() -> None:
    def work(group: RankGroup) -> None:
        group.sum(torch.ones(2))
        if group.rank.is_first:
            with pytest.raises(RankLostError, match="another rank is gone, or late"):
                group.sum(torch.ones(2))  # the other one is in its next step already
        else:
            done.wait(20)

    def first_waits(group: RankGroup) -> None:
        try:
            work(group)
        finally:
            if group.rank.is_first:
                done.set()

    done = threading.Event()
    # What the first sum is given too, on a busy machine.
    in_ranks(2, first_waits, timeout_s=3)
    assert done.is_set()


@pytest.mark.parametrize(
    ("architecture", "kind", "sizes"),
    [
        ("llama", Type.Q4_K, {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}),
        ("qwen3_moe", Type.Q8_0, {"moe_intermediate_size": 64, "head_dim": 32}),
        (
            "deepseek_v3",
            Type.Q8_0,
            {"hidden_size": 96, "q_lora_rank": 32, "qk_nope_head_dim": 32, "v_head_dim": 32}
            | {"moe_intermediate_size": 64, "intermediate_size": 128},
        ),
    ],
)
def test_gguf_files(tmp_path: Path, architecture: str, kind: Type, sizes: dict[str, Any]) -> None:
    file, _ = gguf_and_floats(tmp_path, kind, sizes | {"architecture": architecture})
    check(file, 2, lambda group: on_cpu(file, group))
