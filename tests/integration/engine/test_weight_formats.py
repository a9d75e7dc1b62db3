"""What each weight format does to the shipped model's answers, on two instruction sets."""

import json
from pathlib import Path

import pytest
import torch

from inlay import kernels
from inlay.models.model import load_model
from inlay.models.text import Text
from tests.integration.engine.engines import DEMO
from tests.support.model_driver import ModelDriver

PROMPTS = json.loads(
    (Path(__file__).parents[3] / "examples/demo_model/eval_prompts.json").read_text()
)[::6]

# Mean Kullback-Leibler divergence from float32, nats per answer token: about three times what
# was measured (3e-5, 2.2e-4, 1.0e-4, 3.0e-3, 4.2e-3, 5.0e-3).
DIVERGENCE = {
    "bfloat16": 1e-4,
    "int8": 7e-4,
    "int8:g32": 3e-4,
    "uint4:g32": 0.009,
    "int4:g32": 0.013,
    "int4:g128": 0.016,
}


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, list[int]]]:
    """Token ids of a chat with its expected answer, and how many of them are the prompt's."""
    text = Text.load(DEMO)
    chats = [text.encode_chat([{"role": "user", "content": row["prompt"]}]) for row in PROMPTS]
    return [
        (len(chat), [*chat, *text.encode(row["expected"])])
        for chat, row in zip(chats, PROMPTS, strict=True)
    ]


def log_probabilities(weight_format: str, prompts: list[tuple[int, list[int]]]) -> torch.Tensor:
    """Of every token of every answer, given what stands before it."""
    driver = ModelDriver(load_model(DEMO, weight_format=weight_format), num_pages=512)
    work = [(driver.add(tokens), len(tokens)) for _, tokens in prompts]
    rows = driver.step(work, all_rows=True)
    answers = [logits[size - 1 : -1] for (size, _), logits in zip(prompts, rows, strict=True)]
    return torch.log_softmax(torch.cat(answers).double(), dim=-1)


@pytest.fixture(scope="module")
def exact(prompts: list[tuple[int, list[int]]]) -> torch.Tensor:
    return log_probabilities("float32", prompts)


@pytest.fixture(params=["best", "avx2"])
def isa(request: pytest.FixtureRequest) -> str:
    if request.param == "best":
        return kernels.selected_isa()
    if request.param not in kernels.available_isas():
        pytest.skip(f"this processor cannot run {request.param}")
    return str(request.param)


@pytest.mark.parametrize("weight_format", DIVERGENCE)
def test_answers_stay_close_to_float32(weight_format, isa, exact, prompts):
    with kernels.force_isa(isa):
        found = log_probabilities(weight_format, prompts)
    divergence = (exact.exp() * (exact - found)).sum(dim=-1).mean()
    assert divergence < DIVERGENCE[weight_format]
    # Greedy decoding takes the same token nearly always: at most 7 of 744 differ.
    assert (exact.argmax(dim=-1) == found.argmax(dim=-1)).double().mean() > 0.99
