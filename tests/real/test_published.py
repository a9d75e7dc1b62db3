"""What real models say, beside llama.cpp and transformers: tokens, probabilities, answers, and
what they take.

The gate takes the smallest, SmolLM2-135M in Q4_1, and what was recorded of the other two; `--full`
takes all, and asks them.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import openai
import pytest

from benchmarks.serving.server import serve, wait_until_ready
from inlay.core.errors import ModelFileError
from inlay.models.source import resolve_model
from tests.real.conftest import Served
from tests.support.real_models import (
    RealModel,
    ask_llama_cpp,
    ask_transformers,
    digests,
    parse_logprobs,
    perplexity,
    recorded,
)

# Of llama.cpp's, whose activations have 8 bits as ours do, but scales of their own.
MAX_PERPLEXITY_DIFFERENCE = 0.01
# Of logarithms of probabilities, on average, where both compute with what the file's codes mean.
# SmolLM2's keys and values rounded to bfloat16 make 8e-3, its weights 2e-2.
MAX_FLOAT32_DIFFERENCE = 1e-3
# What a model says to whoever asks so, in formats of its file: (question, what is in the answer).
ANSWERS = {
    "smollm2-135m": ("What is the opposite of hot?", "cold"),
    "qwen2.5-coder-0.5b": ("What is the capital of France?", "Paris"),
}
MAX_MIB = 450  # llama.cpp takes 353
MAX_SERVER_MIB = 90  # without the engine, while nobody has asked for a page


def test_tokens_are_llama_cpps(model: RealModel) -> None:
    """Scripts, digits, code, marks, emoji, white space."""
    found = dict(zip(model.texts, digests(model.tokens()), strict=True))
    expected = dict(zip(model.texts, recorded(model.name)["tokens"], strict=True))
    assert found == expected


def test_tokens_say_their_texts(model: RealModel) -> None:
    for text, tokens in zip(model.texts, model.tokens(), strict=True):
        assert model.text.decode(tokens) == text


def test_the_answer_makes_sense(served: Served) -> None:
    if served.model.text.chat_template is None:
        said = served.client.completions.create(
            model=served.model.file.name,
            prompt="The capital of France is the city of",
            max_tokens=5,
            temperature=0,
        )
        assert "Paris" in said.choices[0].text
        return
    question, expected = ANSWERS[served.model.name]
    first, again = served.answer(question), served.answer(question)
    assert expected in first
    assert again == first


@pytest.mark.parametrize("model", ["smollm2-135m"], indirect=True)
def test_memory(served: Served) -> None:
    """The server, and it and its engine, after an answer, with the model's whole context."""
    assert served.answer("What is 2 + 2?")
    assert served.server.rss_mib() <= MAX_MIB
    server, *_ = served.server.processes()
    assert server.memory_full_info().pss <= MAX_SERVER_MIB << 20


def test_probabilities_are_llama_cpps(served: Served) -> None:
    found = perplexity(logprobs(served))
    expected = recorded(served.model.name)["perplexity"]
    assert found == pytest.approx(expected, rel=MAX_PERPLEXITY_DIFFERENCE)


def test_beside_llama_cpp(served: Served) -> None:
    """The record, and what llama.cpp says today of the same tokens."""
    said = ask_llama_cpp(served.model)
    assert served.model.tokens() == said["tokens"]
    found, expected = perplexity(logprobs(served)), perplexity(said["logprobs"])
    assert found == pytest.approx(expected, rel=MAX_PERPLEXITY_DIFFERENCE)
    assert recorded(served.model.name)["perplexity"] == pytest.approx(expected, rel=0.002)


def test_float32_probabilities_are_transformers(model: RealModel) -> None:
    """The file served as it was published, its weights turned into floats while they load."""
    name = model.file.name
    with (
        serve(
            str(model.file), "--device", "cpu", "--served-model-name", name,
            "--weight-format", "float32", environment=model.environment,
        ) as server,
        openai.OpenAI(
            base_url=server.url + "/v1", api_key="-", max_retries=0, timeout=300
        ) as client,
    ):  # fmt: skip
        wait_until_ready(server, 300)
        found = logprobs(Served(model, server, client))
    expected = parse_logprobs(recorded(model.name)["float32_logprobs"])
    difference = differences(found, expected)
    print(
        f"{name}: perplexity {perplexity(found):.5f}, of transformers {perplexity(expected):.5f}; "
        f"difference of a logarithm: mean {difference.mean():.1e}, "
        f"median {np.median(difference):.1e}, maximum {difference.max():.1e}"
    )
    assert difference.mean() <= MAX_FLOAT32_DIFFERENCE


def test_beside_transformers(model: RealModel) -> None:
    """The record, and what transformers says today of the same tokens."""
    expected = parse_logprobs(recorded(model.name)["float32_logprobs"])
    assert differences(ask_transformers(model), expected).mean() <= MAX_FLOAT32_DIFFERENCE / 10


def differences(found: list[list[float]], expected: list[list[float]]) -> npt.NDArray[np.float64]:
    """Return how far each number is from the one expected, in any window."""
    assert [len(window) for window in found] == [len(window) for window in expected]
    difference: npt.NDArray[np.float64] = np.abs(np.concatenate(found) - np.concatenate(expected))
    return difference


def logprobs(served: Served) -> list[list[float]]:
    """What the model gives each token of each window but the first, before it."""
    said = served.client.completions.create(
        model=served.model.file.name,
        prompt=served.model.windows(),
        max_tokens=0,
        echo=True,
        logprobs=0,
    )
    found = []
    for choice, window in zip(said.choices, served.model.windows(), strict=True):
        assert choice.logprobs is not None
        each = choice.logprobs.token_logprobs
        assert each is not None
        assert len(each) == len(window)
        found.append([one for one in each[1:] if one is not None])
    return found


def test_a_damaged_copy_is_refused_at_once(
    damaged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))
    began_s = time.process_time()
    with pytest.raises(ModelFileError, match="download it again"):
        resolve_model(str(damaged))
    assert time.process_time() - began_s < 1


@pytest.mark.parametrize("model", ["smollm2-135m"], indirect=True)
def test_its_short_name(model: RealModel, tmp_path: Path) -> None:
    """Without a hub it is the package's file, held so that it keeps its wits."""
    done = subprocess.run(
        [
            sys.executable, "-m", "inlay", "generate", "smollm2", "--temperature", "0",
            "--max-tokens", "20", "--device", "cpu", "--context", "256",
        ],
        input=b"What is the capital of France?",
        stdout=subprocess.PIPE,
        env={**os.environ, **model.environment, "HF_HOME": str(tmp_path)},
        check=True,
    )  # fmt: skip
    assert "Paris" in json.loads(done.stdout)["text"]
