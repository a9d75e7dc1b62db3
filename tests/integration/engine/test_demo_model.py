"""The shipped model answers through Inlay what its card promises."""

import json
from pathlib import Path

import pytest

from inlay.core.messages import SamplingParams
from inlay.engine import Engine, EngineConfig

PROMPTS = json.loads(
    (Path(__file__).parents[3] / "examples/demo_model/eval_prompts.json").read_text()
)
DECLINE = "tiny demonstration model"


@pytest.fixture(scope="module")
def answers() -> dict[str, list[tuple[str, str]]]:
    """Greedy answers to the held-out prompts of the quality gates: kind -> (expected, answer)."""
    engine = Engine(EngineConfig())
    prompts = [
        engine.text.encode_chat([{"role": "user", "content": row["prompt"]}]) for row in PROMPTS
    ]
    completions = engine.generate(prompts, SamplingParams(temperature=0, max_tokens=160))
    engine.close()
    by_kind: dict[str, list[tuple[str, str]]] = {}
    for row, completion in zip(PROMPTS, completions, strict=True):
        by_kind.setdefault(row["kind"], []).append((row["expected"], completion.text))
    return by_kind


def test_known_words_are_defined_word_for_word(answers):
    known = answers["known"]
    assert len(known) == 200
    assert sum(expected == answer for expected, answer in known) >= 180
    assert sum(DECLINE in answer for _, answer in known) <= 10


def test_what_is_out_of_scope_is_declined(answers):
    out_of_scope = answers["out_of_scope"]
    assert len(out_of_scope) == 100
    assert sum(DECLINE in answer for _, answer in out_of_scope) >= 90
