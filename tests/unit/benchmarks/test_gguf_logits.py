"""The case models/gguf_logits: its rounding, and what it yields with and without llama.cpp."""

from pathlib import Path
from statistics import median

import pytest
import torch

from benchmarks.case import Run, load_case
from benchmarks.models.gguf_logits import measure, rounded_inputs


def test_inputs_have_8_bits() -> None:
    x = torch.randn(3, 512, generator=torch.manual_seed(0))
    identity = torch.eye(512)
    with rounded_inputs(32):
        rounded = torch.nn.functional.linear(x, identity)
    steps = x.unflatten(1, (-1, 32)).abs().amax(-1, keepdim=True) / 127
    off = (rounded - x).unflatten(1, (-1, 32)).abs() / steps
    assert 0.45 < off.max() < 0.5001
    assert torch.equal(torch.nn.functional.linear(x, identity), x)


def test_without_the_peer() -> None:
    (samples,) = measure(Run(case=load_case("models/gguf_logits"), quick=True))
    assert samples.name == "own_format" and not samples.peers
    assert 0 < median(samples.values) < 0.2


@pytest.mark.peers
def test_beside_llama_cpp(tmp_path: Path) -> None:
    """What it differs by is the noise of its activations, up to the case's target."""
    _, samples = measure(Run(case=load_case("models/gguf_logits"), quick=True, peers=tmp_path))
    assert samples.name == "llama_cpp" and samples.limit is not None
    noise = samples.limit[1]
    assert isinstance(noise, list)
    assert median(samples.values) < 1.5 * median(noise)
