"""Storms of cancels, and steps that fail: nothing leaks, nobody is lost, nothing spins."""

import random
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

import inlay.engine.outputs
from inlay.core.errors import InlayError
from inlay.core.messages import SamplingParams, Structure
from tests.integration.engine.engines import Loaded, drain, request
from tests.support.tiny_models import make_tiny_model


def _random_request(rng, number):
    structure = rng.choice(
        [None] * 6 + [Structure("regex", "[a-z ]{5,40}"), Structure("regex", "(")]
    )
    params = {
        "max_tokens": rng.choice([0, 1, 5, 30, None]),
        "temperature": rng.choice([0.0, 1.0]),
        "n": rng.choice([1, 1, 1, 3]),
        "seed": number,
        "stop": rng.choice([(), ("e",), ("the",)]),
        "logprobs": rng.choice([None, None, 2]),
        "prompt_logprobs": rng.choice([None, None, None, 0]),
        "structure": structure,
    }
    size = rng.choice([1, 5, 16, 40, 100, 5000])
    prompt = [(3 + i) % 500 for i in range(size)] if rng.random() < 0.5 else [number] * size
    return request(number, prompt, priority=rng.choice([0, 0, 1]), **params)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pages", [60, 2000])
def test_a_storm_of_requests_and_cancels(tiny, seed, pages):
    """200 requests, among them impossible ones; a third are cancelled at a random moment."""
    rng = random.Random(seed)
    last, refused, cancelled = {}, set(), set()
    with tiny.engine(pages=pages, max_running=12, prefill_chunk=50, max_waiting=100) as engine:

        def step():
            for output in engine.step():
                assert output.request_id not in last, "an output after the last one"
                if output.finished:
                    last[output.request_id] = output

        for number in range(200):
            try:
                engine.add(_random_request(rng, number))
            except InlayError:
                refused.add(str(number))
            for _ in range(rng.choice([0, 0, 1, 3])):
                step()
            if rng.random() < 0.35:
                victim = str(rng.randrange(number + 1))
                cancelled.add(victim)
                engine.cancel(victim)
            if number % 20 == 0:
                engine.audit()
        for _ in range(5000):
            if not engine.num_live and not engine.has_work:
                break
            if not engine.has_work:
                engine.wait(5.0)
            step()
        engine.audit()
        assert set(last) | refused == {str(number) for number in range(200)}
        assert not set(last) & refused
        assert engine.num_live == 0
        assert engine.cache.counts().used == 0
        engine.reset_prefix_cache()
        assert engine.cache.counts().free == pages
        for request_id, output in last.items():
            if output.error is None and request_id not in cancelled:
                assert {c.finish_reason for c in output.choices} <= {"stop", "length", None}
                assert output.times is not None


def test_a_step_that_fails_once_is_computed_again(tiny, monkeypatch, caplog):
    forward, calls = tiny.model.forward, []

    def fail_third(batch, pool):
        calls.append(batch)
        if len(calls) == 3:
            raise RuntimeError("a cosmic ray")
        return forward(batch, pool)

    params = {"max_tokens": 6, "temperature": 1.0, "seed": 7, "ignore_eos": True, "logprobs": 1}
    prompts = [[10], [20, 21], [40]]

    def run(engine):
        for number, prompt in enumerate(prompts):
            engine.add(request(number, prompt, trace=True, **params))
        return {
            name: [(c.token_ids, c.logprobs) for o in outputs for c in o.choices]
            for name, outputs in drain(engine).items()
        }

    with tiny.engine(max_running=2, prefix=False) as engine:
        expected = run(engine)
        monkeypatch.setattr(tiny.model, "forward", fail_third)
        assert run(engine) == expected
    assert "a cosmic ray" in caplog.text


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_prompt_that_the_model_cannot_compute_fails_alone(tmp_path, number):
    """Hidden states that are no numbers reach the router, which refuses them."""
    directory = make_tiny_model(tmp_path / "model", "qwen3_moe", tie_word_embeddings=False)
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][33] = number
    save_file(tensors, directory / "model.safetensors")
    params = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
    with Loaded(directory).engine() as engine:
        engine.add(request("good", [5, 34], **params))
        expected = drain(engine)["good"]
        for name, prompt in (("good", [5, 34]), ("bad", [5, 33]), ("also", [7])):
            engine.add(request(name, prompt, n=2 if name == "bad" else 1, **params))
        outputs = drain(engine)
        assert outputs["bad"][-1].error_code == "engine_error"
        assert outputs["also"][-1].error is None
        texts = [
            [c.text for o in found for c in o.choices] for found in (outputs["good"], expected)
        ]
        assert texts[0] == texts[1]


def test_a_mask_that_breaks_fails_one_request(tiny, monkeypatch):
    with tiny.engine() as engine:
        for name in ("bad", "good"):
            engine.add(request(name, [5], max_tokens=4, temperature=0.0, ignore_eos=True))
        engine.step()
        sampler = engine._requests.live["bad"].choices[0].sampler

        def fail(logits):
            raise ValueError("no mask")

        sampler.mask, sampler.adjusts = type("Broken", (), {"apply": staticmethod(fail)})(), True
        outputs = drain(engine)
        assert "no mask" in outputs["bad"][-1].error
        assert outputs["good"][-1].error is None


def test_an_error_that_repeats_does_not_spin(tiny, monkeypatch, caplog):
    def fail(batch, pool):
        raise RuntimeError("broken for good")

    with tiny.engine() as engine:
        monkeypatch.setattr(tiny.model, "forward", fail)
        for number in range(20):
            engine.add(request(number, [number], n=2))
        for _ in range(3):
            engine.step()
        assert not engine.has_work
        assert engine.num_live == 0


def test_a_step_without_memory_names_the_settings_to_try(tiny, monkeypatch, caplog):
    forward = tiny.model.forward

    def needs_much(batch, pool):
        if len(batch.token_ids_T) > 4:
            torch.empty(1 << 60, dtype=torch.uint8)
        return forward(batch, pool)

    with tiny.engine() as engine:
        monkeypatch.setattr(tiny.model, "forward", needs_much)
        engine.add(request("long", [5] * 9, max_tokens=4, ignore_eos=True))
        engine.add(request("short", [6], max_tokens=4, ignore_eos=True))
        outputs = drain(engine)
        assert "a step of 9 tokens ran out of memory" in outputs["long"][-1].error
        assert "scheduler.prefill_chunk=4," in outputs["long"][-1].error
        assert outputs["short"][-1].error is None
    with tiny.engine(prefill_chunk=4) as engine:
        engine.add(request("long", [5] * 9, max_tokens=4, ignore_eos=True))
        assert drain(engine)["long"][-1].error is None


def test_a_bug_in_scheduling_drops_all_and_goes_on(tiny, monkeypatch, caplog):
    with tiny.engine() as engine:
        engine.add(request("a", [5], max_tokens=50))
        engine.step()
        engine.add(request("b", [6], max_tokens=50))

        def fail():
            raise ZeroDivisionError("a bug")

        monkeypatch.setattr(engine._scheduler, "schedule", fail)
        outputs = {output.request_id: output for output in engine.step()}
        assert {output.error_code for output in outputs.values()} == {"engine_error"}
        assert set(outputs) == {"a", "b"}
        monkeypatch.undo()
        assert engine.generate([5], SamplingParams(max_tokens=3))[0].error is None
    assert "scheduling failed" in caplog.text


def test_logits_that_are_no_numbers_fail_one_request(tiny, monkeypatch):
    forward = tiny.model.forward

    def poison(batch, pool):
        logits = forward(batch, pool)
        for row, token in enumerate(batch.token_ids_T[batch.logit_rows_R]):
            if token == 33:
                logits[row] = float("nan")
        return logits

    with tiny.engine() as engine:
        monkeypatch.setattr(tiny.model, "forward", poison)
        engine.add(request("bad", [5, 33], max_tokens=4, ignore_eos=True))
        engine.add(request("good", [5, 34], max_tokens=4, temperature=0.0, ignore_eos=True))
        outputs = drain(engine)
        assert "not finite" in outputs["bad"][-1].error
        assert outputs["good"][-1].error is None


def test_a_text_bug_fails_one_request(tiny, caplog):
    with tiny.engine() as engine:
        engine.add(request("bad", [5], max_tokens=4, ignore_eos=True))
        engine.add(request("good", [6], max_tokens=4, ignore_eos=True))
        engine.step()

        def fail(*arguments):
            raise ValueError("no text")

        choice = engine._requests.live["bad"].choices[0]
        choice.text = type("Broken", (), {"push": fail, "end": fail})()
        outputs = drain(engine)
        assert "no text" in outputs["bad"][-1].error
        assert outputs["good"][-1].error is None
    assert "an output failed" in caplog.text


@pytest.mark.parametrize("which", ["first", "last"])
def test_an_output_that_cannot_be_made_fails_one_request(tiny, monkeypatch, caplog, which):
    make = inlay.engine.outputs._output

    def fail(request, *rest):
        if request.request_id == "bad" and (which == "first" or not request.unfinished):
            raise ValueError("no output")
        return make(request, *rest)

    monkeypatch.setattr(inlay.engine.outputs, "_output", fail)
    with tiny.engine() as engine:
        engine.add(request("bad", [5], max_tokens=4, ignore_eos=True))
        engine.add(request("good", [6], max_tokens=4, ignore_eos=True))
        outputs = drain(engine)
        assert "no output" in outputs["bad"][-1].error
        assert outputs["bad"][-1].finished
        assert outputs["good"][-1].error is None
    assert "an output failed" in caplog.text


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_request_that_cannot_start_fails_alone(tiny, monkeypatch, caplog, cancelled):
    with tiny.engine() as engine:
        release = threading.Event()
        engine._grammars._threads.submit(release.wait)
        engine.add(request("bad", [5], n=2, structure=Structure("regex", "[a-z]{3}")))
        engine.add(request("good", [6], max_tokens=4, ignore_eos=True))

        def fail(*_, **__):
            raise ValueError("no stream")

        engine.step()
        monkeypatch.setattr(engine._text, "stream", fail)
        if cancelled:
            engine.cancel("bad")
        release.set()
        outputs = drain(engine)
        assert "no stream" in outputs["bad"][-1].error
        assert outputs["good"][-1].error is None
    assert "cannot start" in caplog.text
