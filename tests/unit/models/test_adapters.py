"""Adapters in a batch: what each row gets is what the merged model gives."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file, save_file
from torch import Tensor

from inlay.core.errors import ModelError, ModelFileError, ModelNotFoundError
from inlay.core.model_config import read_shape
from inlay.core.model_shape import ModelShape
from inlay.core.placement import LayerPlacement, Placement
from inlay.models import Model, load_model
from inlay.models.adapter import read_adapter
from inlay.models.adapter_weights import AdapterWeights
from inlay.models.conversion.convert import convert
from inlay.models.fake_device import FakeDevice, FakeOps
from inlay.models.host_share import ShareConfig
from inlay.models.native_ops import NativeOps
from tests.support.gguf_files import gguf_and_floats
from tests.support.model_driver import ModelDriver
from tests.support.peft_models import ATTENTION, load_base
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter, merge

PROMPTS = (range(5, 30), range(40, 53), range(100, 121), range(7, 27))


CASES = [
    ("qwen3_moe", ("q_proj", "o_proj", "gate_proj", "down_proj")),
    ("deepseek_v2", ("kv_b_proj", "kv_a_proj_with_mqa", "up_proj")),
    ("deepseek_v3", ("q_b_proj", "q_a_proj", "experts.down_proj")),
    ("llama", ("v_proj", "up_proj")),
]


@pytest.mark.parametrize(("architecture", "targets"), CASES)
def test_a_mixed_batch(tmp_path: Path, architecture: str, targets: tuple[str, ...]) -> None:
    """Base, A, B and A again: prompts together, then steps of one token."""
    directory = make_tiny_model(tmp_path / "model", architecture, num_hidden_layers=3)
    a = make_adapter(directory, tmp_path / "a", rank=4, seed=1)
    b = make_adapter(directory, tmp_path / "b", targets=targets, rank=3, seed=2)
    model = load_model(directory)
    adapters = (None, model.load_adapter(a), model.load_adapter(b))
    merged = (
        model,
        load_model(merge(directory, a, tmp_path / "a-merged")),
        load_model(merge(directory, b, tmp_path / "b-merged")),
    )
    order = (0, 1, 2, 1)
    driver = ModelDriver(model)
    running = [
        driver.add(prompt, adapter=adapters[n]) for prompt, n in zip(PROMPTS, order, strict=True)
    ]
    alone = [ModelDriver(model) for _ in order]
    plain = [ModelDriver(merged[n]) for n in order]
    singles = [d.add(r.tokens, adapter=r.adapter) for d, r in zip(alone, running, strict=True)]
    wanted = [d.add(r.tokens) for d, r in zip(plain, running, strict=True)]
    for _ in range(6):
        todo = [len(r.tokens) - r.computed for r in running]
        together = driver.step(list(zip(running, todo, strict=True)))
        for n, logits in enumerate(together):
            (one,) = alone[n].step([(singles[n], todo[n])])
            (other,) = plain[n].step([(wanted[n], todo[n])])
            assert torch.equal(one, logits), "company changes no bit"
            torch.testing.assert_close(logits, other, rtol=0, atol=1e-4)
            token = int(logits[-1].argmax())
            assert token == int(other[-1].argmax())
            for sequence in (running[n], singles[n], wanted[n]):
                sequence.tokens.append(token)
    (base,) = ModelDriver(model).step([(driver.add(PROMPTS[1]), len(PROMPTS[1]))])
    (changed,) = driver.step([(driver.add(PROMPTS[1], adapter=adapters[1]), len(PROMPTS[1]))])
    assert float((base - changed).abs().max()) > 0.1, "the adapter does something"


def logits_of(model: Model, adapters: Sequence[AdapterWeights | None]) -> list[torch.Tensor]:
    """Of prompts with these adapters in one step, and of the step of one token behind them."""
    driver = ModelDriver(model)
    running = [driver.add(p, adapter=a) for p, a in zip(PROMPTS, adapters, strict=False)]
    prompts = driver.step([(one, len(one.tokens)) for one in running])
    for one in running:
        one.tokens.append(9)
    return [*prompts, *driver.step([(one, 1) for one in running])]


@pytest.mark.parametrize(("architecture", "targets"), CASES)
def test_with_pytorch(tmp_path: Path, architecture: str, targets: tuple[str, ...]) -> None:
    """A second opinion on the kernels, and what computes on a GPU."""
    directory = make_tiny_model(tmp_path / "model", architecture, num_hidden_layers=3)
    a = make_adapter(directory, tmp_path / "a", rank=4, seed=1)
    b = make_adapter(directory, tmp_path / "b", targets=targets, rank=3, seed=2)
    wanted, found = (
        logits_of(model, [model.load_adapter(a), None, model.load_adapter(b)])
        for model in (load_model(directory), load_model(directory, backend="torch"))
    )
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-4)


def test_on_packed_weights(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "model", "qwen3_moe", num_hidden_layers=3)
    a = make_adapter(directory, tmp_path / "a")
    convert(directory, tmp_path / "packed", weight_format="int8")
    wanted, found = (
        logits_of(model, [model.load_adapter(a), None])
        for model in (load_model(directory, weight_format="int8"), load_model(tmp_path / "packed"))
    )
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe", "deepseek_v2"])
def test_on_gguf(tmp_path: Path, architecture: str) -> None:
    """Its rows of queries and keys lie in another order in some files."""
    directory, floats = gguf_and_floats(tmp_path, Type.F32, {"architecture": architecture})
    a = make_adapter(floats, tmp_path / "a")
    wanted, found = (
        logits_of(model, [model.load_adapter(a), None])
        for model in (load_model(floats), load_model(directory, weight_format="float32"))
    )
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-4)


SHARED = [
    pytest.param(0, {}, id="host"),
    pytest.param(3, {}, id="both"),
    pytest.param(0, {"stream": 10, "stream_bytes": 150_000}, id="streamed"),
    pytest.param(3, {"stream": 10, "stream_bytes": 150_000}, id="both-streamed"),
    pytest.param(3, {"deferred": 2}, id="both-deferred"),
]


@pytest.mark.parametrize(("resident", "sharing"), SHARED)
@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v2"])
def test_beside_experts_of_the_host(
    tmp_path: Path, architecture: str, resident: int, sharing: dict[str, int]
) -> None:
    """Whoever computes an expert adds what comes to it: the device, the host, or the device that
    gets it for a prompt.
    """
    directory = make_tiny_model(
        tmp_path / "model", architecture, num_hidden_layers=3, num_experts_per_tok=4
    )
    a, b = (make_adapter(directory, tmp_path / name, seed=n) for n, name in enumerate("ab"))
    merged = [merge(directory, one, tmp_path / f"{one.name}-merged") for one in (a, b)]
    layer = LayerPlacement(device="fake:0", resident=resident)

    def load(directory: Path) -> Model:
        return load_model(
            directory,
            weight_format="float32",
            placement=Placement(layers=(layer, layer, LayerPlacement())),
            backends={"fake:0": FakeOps("fake:0", FakeDevice()), "cpu": NativeOps()},
            sharing=ShareConfig(**sharing),
        )

    model = load(directory)
    _move_experts(model)
    found = logits_of(model, [None, *map(model.load_adapter, (a, b))])
    for number, plain in enumerate((directory, *merged)):
        of_one = load(plain)
        _move_experts(of_one)
        wanted = logits_of(of_one, [None] * 3)
        for step in (number, 3 + number):
            torch.testing.assert_close(found[step], wanted[step], rtol=0, atol=1e-4)


def _move_experts(model: Model) -> None:
    """Others than the first, in slots of other numbers."""
    share = model.host_share
    assert share is not None
    for place, residents in enumerate(share._residents_L):
        if residents is not None:
            for gone, expert in ((0, 6), (2, 0)):
                slot = share.residency.evict(place, gone)
                residents.fill(slot, expert)
                share.residency.put(place, slot, expert)
            residents.show(share.residency.slot_of_LE[place])


@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v2"])
def test_with_deferral(tmp_path: Path, architecture: str) -> None:
    """All matrices; what is added to deferred experts comes with their sum, one layer later."""
    directory = make_tiny_model(
        tmp_path / "model", architecture, num_hidden_layers=4, num_experts_per_tok=4
    )
    a, b = (make_adapter(directory, tmp_path / name, seed=n) for n, name in enumerate("ab"))
    merged = [merge(directory, one, tmp_path / f"{one.name}-merged") for one in (a, b)]
    later = ShareConfig(deferred=2)
    model = load_model(directory, sharing=later)
    adapters = [None, *map(model.load_adapter, (a, b))]
    found = logits_of(model, adapters)
    for number, plain in enumerate((directory, *merged)):
        of_one = load_model(plain, sharing=later)
        wanted = logits_of(of_one, [None] * 3)
        for step in (number, 3 + number):
            torch.testing.assert_close(found[step], wanted[step], rtol=0, atol=1e-4)
    exact = logits_of(load_model(merged[0]), [None] * 3)[4]
    assert float((exact - found[4]).abs().max()) > 1e-3, "experts were deferred"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning")
def test_gpt_oss_as_peft_has_it(tmp_path: Path) -> None:
    """Its experts' matrices have columns first in its files, and gate and up alternate."""
    from peft import LoraConfig, get_peft_model

    directory = make_tiny_model(tmp_path / "model", "gpt_oss", num_hidden_layers=2)
    peft = get_peft_model(
        load_base(directory),
        LoraConfig(
            r=4,
            lora_alpha=8,
            target_modules=list(ATTENTION),
            target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
        ),
    ).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.05, generator=generator)
        wanted = peft(input_ids=torch.tensor([list(PROMPTS[0])])).logits[0]
    peft.save_pretrained(tmp_path / "a")
    for backend in ("native", "torch"):
        model = load_model(directory, backend=backend)
        driver = ModelDriver(model)
        one = driver.add(PROMPTS[0], adapter=model.load_adapter(tmp_path / "a"))
        (found,) = driver.step([(one, len(one.tokens))], all_rows=True)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
        (base,) = driver.step([(driver.add(PROMPTS[0]), len(PROMPTS[0]))], all_rows=True)
        assert float((found - base).abs().max()) > 0.1


QUANTIZED_GGUF = [
    ("llama", Type.Q4_K, {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}),
    ("qwen3_moe", Type.Q8_0, {"moe_intermediate_size": 64, "head_dim": 32}),
]


@pytest.mark.parametrize(("architecture", "kind", "sizes"), QUANTIZED_GGUF)
def test_on_quantised_gguf(
    tmp_path: Path, architecture: str, kind: Type, sizes: dict[str, int]
) -> None:
    """What it adds is what it adds to the floats that the file stands for."""
    directory, floats = gguf_and_floats(tmp_path, kind, sizes | {"architecture": architecture})
    a = make_adapter(floats, tmp_path / "a")
    wanted, found = (
        logits_of(model, [model.load_adapter(a), None])
        for model in (load_model(floats), load_model(directory, weight_format="float32"))
    )
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-4)
    as_published = load_model(directory)
    changed = logits_of(as_published, [as_published.load_adapter(a), None])
    plain = logits_of(as_published, [None, None])
    assert torch.equal(changed[1], plain[1])
    assert float((changed[0] - plain[0]).abs().max()) > 0.1


def test_wrong_adapters(tmp_path: Path) -> None:
    directory = make_tiny_model(tmp_path / "model", "qwen3_moe")
    wider = make_tiny_model(tmp_path / "wider", "qwen3_moe", hidden_size=96)
    deeper = make_tiny_model(tmp_path / "deeper", "qwen3_moe", num_hidden_layers=3)
    adapter = make_adapter(directory, tmp_path / "a")
    model = load_model(directory)
    with pytest.raises(ModelNotFoundError, match="adapter_config"):
        model.load_adapter(tmp_path / "nothing")
    for other in (wider, deeper):
        with pytest.raises(ModelFileError, match="another model's"):
            model.load_adapter(make_adapter(other, tmp_path / f"{other.name}-adapter"))
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelFileError, match="cut off"):
        model.load_adapter(adapter)


def changed_config(**values: Any) -> Callable[[Path], object]:
    def change(adapter: Path) -> None:
        file = adapter / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def written_config(text: str) -> Callable[[Path], object]:
    return lambda adapter: (adapter / "adapter_config.json").write_text(text)


def changed_weights(change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Any:
    def write(adapter: Path) -> None:
        file = adapter / "adapter_model.safetensors"
        kept = {name: tensor.contiguous() for name, tensor in change(load_file(file)).items()}
        save_file(kept, file)

    return write


STACKED = "base_model.model.model.layers.x.mlp.experts.lora_A.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4976698672\n"
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "nested JSON": (written_config("[" * 200_000), "is no JSON .*: write the adapter again"),
    "a list": (written_config("[1]"), "holds a list"),
    "rank 0": (changed_config(r=0), "has r 0 .* whole number from 1"),
    "rank -1": (changed_config(r=-1), "whole number from 1"),
    "true": (changed_config(r=True), "whole number from 1"),
    "other rank": (changed_config(r=3), "has rank 2, and adapter_config.json gives 3: files of"),
    "rank_pattern": (changed_config(rank_pattern={"a": 0}), "rank_pattern must have a number"),
    "alpha": (changed_config(lora_alpha=1e39), "that float32 holds"),
    "long alpha": (changed_config(lora_alpha=10**400), "that float32 holds"),
    "slow pattern": (changed_config(alpha_pattern={"(.+)+#": 1}), "repeats a group"),
    "long pattern": (changed_config(alpha_pattern={".*" * 20 + "#": 1}), "more than 4 "),
    "a pointer": (
        lambda adapter: (adapter / "adapter_model.safetensors").write_text(POINTER),
        r"adapter_model\.safetensors is a pointer of Git LFS",
    ),
    "nothing": (changed_weights(lambda _: {}), "holds no matrices"),
    "whole matrices": (
        changed_config(modules_to_save=["embed_tokens", "lm_head"]),
        r'modules_to_save is \["embed_tokens", "lm_head"\], .* merge it into the model with PEFT',
    ),
    **{
        name: (
            changed_weights(lambda old, name=name: old | {name: torch.ones(2, 2)}),
            f"{name} changes the embedding or the output matrix, .*: merge it into the model with",
        )
        for name in (
            "model.embed_tokens.weight",
            "model.embed_tokens.lora_embedding_A",
            "lm_head.lora_B.weight",
        )
    },
    "no rank": (
        changed_weights(lambda old: {k: t[:0] if "_A" in k else t[:, :0] for k, t in old.items()}),
        "has rank 0",
    ),
    "integers": (changed_weights(lambda old: {k: t.int() for k, t in old.items()}), "is I32"),
    "fp8": (
        changed_weights(lambda old: {k: t.to(torch.float8_e4m3fn) for k, t in old.items()}),
        "is F8_E4M3",
    ),
    "no layer": (changed_weights(lambda _: {STACKED: torch.zeros(16, 64)}), "no module for"),
    "a number": (
        changed_weights(lambda _: {"layers.0.gate_lora_a": torch.tensor(1.0)}), "8 experts"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelShape, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    directory = make_tiny_model(folder / "model", "qwen3_moe", tokenizer="none")
    return read_shape(directory), make_adapter(directory, folder / "adapter", rank=2)


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_adapters(damage: str, tiny: tuple[ModelShape, Path], tmp_path: Path) -> None:
    (shape, adapter), (change, why) = tiny, DAMAGES[damage]
    shutil.copytree(adapter, tmp_path / "adapter")
    change(tmp_path / "adapter")
    with pytest.raises(ModelError, match=why):
        read_adapter(tmp_path / "adapter", shape)
