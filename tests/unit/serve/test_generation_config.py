"""Defaults of a model: what is taken from its file, and what is said of the rest."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from inlay.core.errors import ModelFileError
from inlay.serve.generation_config import sampling_defaults
from inlay.serve.openai.protocol import CompletionRequest
from inlay.serve.openai.sampling import SamplingDefaults, SamplingLimits, build_params

LIMITS = SamplingLimits(vocab_size=512, max_n=1, max_choices=1, max_logprobs=0)


def defaults(directory: Path, **found: Any) -> SamplingDefaults:
    (directory / "generation_config.json").write_text(json.dumps(found))
    return sampling_defaults(directory)


def test_values_are_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert sampling_defaults(tmp_path) == SamplingDefaults()
    found = defaults(
        tmp_path, temperature=0, top_p=1, top_k=-1, min_p=0.5, max_new_tokens=7, eos_token_id=2
    )
    assert found == SamplingDefaults(temperature=0.0, top_p=1.0, top_k=0, min_p=0.5, max_tokens=7)
    assert defaults(tmp_path, repetition_penalty=1.1, top_k=None).repetition_penalty == 1.1
    file = tmp_path / "generation_config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert sampling_defaults(tmp_path).repetition_penalty == 1.1
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("temperature", -0.1, "a number in 0..100"),
        ("temperature", "hot", "a number in 0..100"),
        ("temperature", True, "a number in 0..100"),
        ("temperature", float("nan"), "a number in 0..100"),
        ("top_p", 0.0, "a number above 0 and at most 1"),
        ("top_p", 1.5, "a number above 0 and at most 1"),
        ("top_k", -2, "a whole number in -1..2147483647"),
        ("top_k", 2.5, "a whole number in -1..2147483647"),
        ("min_p", 2, "a number in 0..1"),
        ("repetition_penalty", 0, "a number above 0 and at most 1000"),
        ("max_new_tokens", 0, "a whole number in 1..2147483647"),
    ],
)
def test_what_no_request_may_have_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str, value: Any, allowed: str
) -> None:
    found = defaults(tmp_path, **{key: value})
    assert found == SamplingDefaults()
    build_params(CompletionRequest(prompt="a"), defaults=found, limits=LIMITS, max_tokens=1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    file = tmp_path / "generation_config.json"
    said = f"{file}: {key} is {value!r}, which is left out: it must be {allowed}"
    assert record.getMessage() == said


def test_what_is_taken_no_request_is_refused_for(tmp_path: Path) -> None:
    for key, ends in {
        "temperature": (0, 100),
        "top_p": (1e-9, 1),
        "top_k": (-1, 2**31 - 1),
        "min_p": (0, 1),
        "repetition_penalty": (1e-9, 1000),
    }.items():
        for value in ends:
            found = defaults(tmp_path, **{key: value})
            assert getattr(found, key) == (0 if value == -1 else value)
            build_params(CompletionRequest(prompt="a"), defaults=found, limits=LIMITS, max_tokens=1)


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(ModelFileError, match=r"generation_config\.json, line 1: is no JSON"):
        sampling_defaults(tmp_path)
