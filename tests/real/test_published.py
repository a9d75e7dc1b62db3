"""What real models say, beside llama.cpp: tokens, probabilities, answers, and what they take.

The gate takes the smallest, SmolLM2-135M in Q4_1, and what was recorded of llama.cpp; `--full`
takes all, and asks llama.cpp itself.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inlay.core.errors import ModelFileError
from inlay.models.source import resolve_model
from tests.real.conftest import Served
from tests.support.real_models import (
    RealModel,
    ask_llama_cpp,
    digests,
    perplexity,
    recorded,
)

# Of llama.cpp's, whose activations have 8 bits as ours do, but scales of their own.
MAX_PERPLEXITY_DIFFERENCE = 0.01
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
