"""Adapters in a batch: what each row gets is what the merged model gives."""

from pathlib import Path

import pytest
import torch

from inlay.core.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from inlay.models import load_model
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.support.tuning import make_adapter, merge

PROMPTS = (range(5, 30), range(40, 53), range(100, 121), range(7, 27))


@pytest.mark.parametrize(
    ("architecture", "targets"),
    [
        ("qwen3_moe", ("q_proj", "o_proj", "gate_proj", "down_proj")),
        ("deepseek_v2", ("kv_b_proj", "kv_a_proj_with_mqa", "up_proj")),
        ("deepseek_v3", ("q_b_proj", "q_a_proj", "experts.down_proj")),
        ("llama", ("v_proj", "up_proj")),
    ],
)
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
    torch_model = load_model(directory, backend="torch")
    with pytest.raises(UnsupportedModelError, match="only the CPU kernels"):
        torch_model.load_adapter(adapter)
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelFileError, match="cut off"):
        model.load_adapter(adapter)
