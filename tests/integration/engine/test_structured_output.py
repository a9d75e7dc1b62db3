"""Outputs that follow a grammar, checked by the grammar's own judges under many seeds."""

import json
import re
import shutil
import threading

import jsonschema
import pytest
import torch
from safetensors.torch import load_file, save_file

from inlay.core.messages import SamplingParams, Structure
from tests.integration.engine.engines import Loaded, drain, request

SEEDS = 24
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 8}, "zip": {"type": "null"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "address"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(tiny):
    with tiny.engine() as engine:
        yield engine


def _outputs(engine, structure, **params):
    """Finished outputs of many seeds, sampled together with requests without a grammar."""
    options = {"temperature": 1.0, "max_tokens": 300} | params
    prompts = [[5, 6, 7 + seed] for seed in range(SEEDS)]
    structured = [SamplingParams(seed=s, structure=structure, **options) for s in range(SEEDS)]
    free = [SamplingParams(seed=s, max_tokens=10) for s in range(SEEDS)]
    answers = engine.generate([*prompts, *prompts], [*structured, *free])
    assert all(answer.error is None for answer in answers)
    choices = [choice for answer in answers[:SEEDS] for choice in answer.choices]
    texts = [choice.text for choice in choices if choice.finish_reason == "stop"]
    assert len(texts) > len(choices) / 2
    return texts


@pytest.mark.parametrize(
    "pattern",
    [r"[a-z]{2,9}@[a-z]{2,9}\.(com|org)", r"[0-9]{4}-[0-9]{2}-[0-9]{2}", r"(ab|c)*d", r"[^x]{5}"],
)
def test_regex(engine, pattern):
    texts = _outputs(engine, Structure("regex", pattern))
    assert all(re.fullmatch(pattern, text) for text in texts)
    assert len(set(texts)) > 2


def test_choice(engine):
    options = ["yes", "no", "yes and no", "ümlaut 你"]
    texts = _outputs(engine, Structure("choice", json.dumps(options)))
    assert set(texts) <= set(options)
    assert len(set(texts)) > 1
    assert len(texts) == SEEDS


def test_json_schema(engine):
    for text in _outputs(engine, Structure("json_schema", json.dumps(SCHEMA))):
        jsonschema.validate(json.loads(text), SCHEMA)


def test_json_object(engine):
    # A random model rarely closes an object by itself; a high price on long strings helps.
    quote = engine.text.encode('"')[-1]
    brace = engine.text.encode("}")[-1]
    bias = {quote: 4.0, brace: 4.0}
    for text in _outputs(engine, Structure("json_object"), logit_bias=bias, max_tokens=400):
        assert isinstance(json.loads(text), dict)


def test_greedy_and_several_choices(engine):
    structure = Structure("regex", "[ab]{6}")
    params = SamplingParams(temperature=0.0, max_tokens=20, structure=structure)
    assert re.fullmatch("[ab]{6}", engine.generate([5], params)[0].text)
    params = SamplingParams(temperature=1.5, max_tokens=20, seed=1, n=6, structure=structure)
    texts = [choice.text for choice in engine.generate([5], params)[0].choices]
    assert all(re.fullmatch("[ab]{6}", text) for text in texts)
    assert len(set(texts)) > 1


def test_max_tokens_cuts(engine):
    params = SamplingParams(max_tokens=4, seed=0, structure=Structure("regex", "[ab]{100}"))
    choice = engine.generate([5], params)[0].choices[0]
    assert choice.finish_reason == "length"
    assert re.fullmatch("[ab]{1,}", choice.text)


def test_the_grammar_wins_over_min_tokens_and_ignore_eos(engine):
    structure = Structure("choice", '["a"]')
    params = SamplingParams(
        max_tokens=50, min_tokens=20, ignore_eos=True, seed=0, structure=structure
    )
    choice = engine.generate([5], params)[0].choices[0]
    assert (choice.text, choice.finish_reason) == ("a", "stop")


def test_min_tokens_holds_where_the_grammar_allows_it(engine):
    structure = Structure("regex", "[ab]*")
    for seed in range(5):
        params = SamplingParams(max_tokens=50, min_tokens=9, seed=seed, structure=structure)
        choice = engine.generate([5], params)[0].choices[0]
        assert len(choice.token_ids) > 9
        assert re.fullmatch("[ab]*", choice.text)


def test_stop_texts_still_stop(engine):
    params = SamplingParams(
        max_tokens=50, seed=0, structure=Structure("regex", "[a-c]{40}"), stop=("b", "c", "a")
    )
    choice = engine.generate([5], params)[0].choices[0]
    assert (choice.text, choice.finish_reason) == ("", "stop")


def test_preempted_grammars_go_on(tiny):
    structure = Structure("regex", "([a-m]{4} ){8}")
    params = [SamplingParams(max_tokens=60, seed=seed, structure=structure) for seed in range(8)]
    prompts = [[5, 6, seed] for seed in range(8)]
    with tiny.engine() as engine:
        expected = [answer.text for answer in engine.generate(prompts, params)]
    with tiny.engine(pages=40, page_tokens=2) as engine:
        assert [answer.text for answer in engine.generate(prompts, params)] == expected
        assert engine.stats().preemptions > 0


def test_other_requests_run_while_a_grammar_is_compiled(tiny):
    with tiny.engine() as engine:
        engine.add(request("slow", [5], max_tokens=30, structure=Structure("regex", "[a-z]{30}x")))
        engine.add(request("quick", [5], max_tokens=3, ignore_eos=True))
        assert engine.stats().waiting == 2
        outputs = drain(engine)
        assert outputs["quick"][-1].finished
        assert outputs["slow"][-1].finished


def test_a_grammar_that_nobody_waits_for_is_not_compiled(tiny):
    structure = Structure("regex", "[a-z]{3}x")
    with tiny.engine() as engine:
        release = threading.Event()
        engine._grammars._threads.submit(release.wait)
        for name in ("first", "second"):
            engine.add(request(name, [5], structure=structure))
        future = engine._grammars.submit(structure)
        engine.cancel("first")
        assert not future.cancelled(), "the second request waits for it"
        engine.cancel("second")
        assert future.cancelled()
        engine.add(request("third", [5], max_tokens=30, structure=structure))
        release.set()
        outputs = drain(engine)
        assert {outputs[n][-1].choices[0].finish_reason for n in ("first", "second")} == {"cancel"}
        assert outputs["third"][-1].error is None


def test_bias_against_all_that_the_grammar_allows_is_an_error(engine):
    ids = {token_id: -100.0 for token_id in range(engine.info.vocab_size)}
    params = SamplingParams(
        max_tokens=5, logit_bias=ids, structure=Structure("regex", "ab"), temperature=0.0
    )
    answer = engine.generate([5], params)[0]
    assert answer.error is None, "very unlikely is not forbidden"
    assert answer.text == "ab"


def test_end_tokens_that_the_model_does_not_have(tiny, tmp_path):
    """A damaged generation_config.json costs nobody an answer."""
    directory = shutil.copytree(tiny.directory, tmp_path / "model")
    file = directory / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eos_token_id": [2, -5, 10**9]}))
    params = [
        SamplingParams(max_tokens=4, min_tokens=3, temperature=0),
        SamplingParams(max_tokens=4, structure=Structure("choice", '["yes"]')),
    ]
    with Loaded(directory).engine() as engine:
        plain, chosen = engine.generate(["a", "b"], params)
    assert (plain.error, chosen.error, chosen.text) == (None, None, "yes")


def test_rows_that_the_tokenizer_has_no_token_for(tiny, tmp_path):
    """Vocabularies are padded to round sizes: such rows have no text."""
    directory = shutil.copytree(tiny.directory, tmp_path / "model")
    config = json.loads((directory / "config.json").read_text())
    has = config["vocab_size"]
    (directory / "config.json").write_text(json.dumps(config | {"vocab_size": has + 128}))
    tensors = load_file(directory / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
        tensors[name] = torch.cat((tensors[name], 3 * tensors[name][:128]))
    save_file(tensors, directory / "model.safetensors")
    params = [
        SamplingParams(max_tokens=9, temperature=0.0, ignore_eos=True),
        SamplingParams(max_tokens=9, temperature=0.0, structure=Structure("regex", "[ab]{3}")),
    ]
    with Loaded(directory).engine() as engine:
        plain, structured = engine.generate(["hello", "hello"], params)
    assert plain.error is None and structured.error is None
    assert re.fullmatch("[ab]{3}", structured.text)
