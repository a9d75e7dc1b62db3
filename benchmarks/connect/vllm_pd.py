"""Runner of connect/vllm_pd."""

import random
import re
import tempfile
from collections.abc import Generator
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.connect.vllm_pair import (
    BLOCK_TOKENS,
    external_tokens,
    hand_over,
    kv_transfer,
    pair,
)
from benchmarks.store.instances import ask
from benchmarks.triples import Samples
from inlay.models.source import resolve_model
from inlay.serve.page.prompts import document
from tests.support.tiny_models import make_tiny_model


def measure(run: Run) -> Generator[Samples, None, None]:
    """Each prompt by the pair, and by the decoding instance alone (another salt, so that nothing
    of it is found).

    The same prompt asked once more finds the instance's own cache: how often its text then differs
    is how far vLLM's kernels agree with themselves where a prompt is computed in other pieces. The
    pair leaves the last token to the decoding instance, the cache what is behind the last whole
    block. Where that is one token, both compute the same pieces, so both texts have to be equal.

    Where the first token of the output is handed on with the prompt, nothing is computed twice, and
    the pieces are those of one instance alone.
    """
    environment = None if run.quick else peers.environment(run.peers, "vllm")  # it starts slowly
    if environment is None:
        return
    for params in run.params("identical_texts"):
        with tempfile.TemporaryDirectory() as name:
            if params["model"] == "random":
                model = make_tiny_model(Path(name) / "random", **run.workload["random"])
                prompts = random_prompts(run)
            else:
                model = resolve_model(None).directory
                prompts = questions(run, model)
            yield from _measure(run, model, prompts, params)


def _measure(
    run: Run, model: Path, prompts: list[list[int]], params: dict[str, Any]
) -> Generator[Samples, None, None]:
    size = int(run.workload["context_tokens"])
    outputs = int(run.workload["output_tokens"])
    ratios, same, taken, own, alike = [], [], [], [], []
    with pair(_environment(run), model, kv_transfer(), context_tokens=size) as (prefill, decode):
        for number, prompt in enumerate(prompts):
            fields = {"ignore_eos": params["model"] == "random"}
            alone = ask(decode, prompt, outputs, cache_salt=f"alone {number}", **fields)
            again = ask(decode, prompt, outputs, cache_salt=f"alone {number}", **fields)
            before = external_tokens(decode)
            salt = f"pair {number}"
            params_of = hand_over(prefill, prompt, salt).params
            both = ask(
                decode, prompt, outputs, cache_salt=salt, kv_transfer_params=params_of, **fields
            )
            salt = f"first token of {number}"
            params_of, first = hand_over(prefill, prompt, salt)
            rest = ask(
                decode, [*prompt, first], outputs - 1, cache_salt=salt,
                kv_transfer_params=params_of, **fields,
            )  # fmt: skip
            came = external_tokens(decode) - before
            if came != 2 * len(prompt):
                raise RuntimeError(f"{came} of {2 * len(prompt)} tokens came from the other one")
            ratios.append(both.ttft_ms / alone.ttft_ms)
            same.append(both.token_ids == alone.token_ids)
            taken.append([first, *rest.token_ids] == alone.token_ids)
            own.append(again.token_ids == alone.token_ids)
            if params["model"] == "random" and len(prompt) % BLOCK_TOKENS == 1:
                alike.append(both.token_ids == again.token_ids)
    yield Samples(name="identical_texts", params=params, values=[fmean(same)])
    yield Samples(name="identical_first_token_taken", params=params, values=[fmean(taken)])
    yield Samples(name="identical_own_cache", params=params, values=[fmean(own)])
    if alike:
        yield Samples(name="identical_same_pieces", params=params, values=[fmean(alike)])
    yield Samples(name="ttft_ratio", params=params, values=ratios)


def _environment(run: Run) -> Path:
    found = peers.environment(run.peers, "vllm")
    assert found is not None
    return found


def random_prompts(run: Run) -> list[list[int]]:
    """Random tokens; every second prompt is of whole blocks and one token."""
    drawn = random.Random(run.seeds[0])
    vocab, (low, high) = run.workload["random"]["vocab_size"], run.workload["prompt_tokens"]
    sizes = [drawn.randint(low, high) for _ in range(run.repeats)]
    sizes[::2] = [max(1, size // BLOCK_TOKENS) * BLOCK_TOKENS + 1 for size in sizes[::2]]
    return [[drawn.randrange(3, vocab) for _ in range(size)] for size in sizes]


def questions(run: Run, model: Path) -> list[list[int]]:
    """What words mean, each behind another part of a document in which they are."""
    from transformers import AutoTokenizer

    drawn = random.Random(run.seeds[0])
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = document()
    words = sorted({word.lower() for word in re.findall(r"\b[a-z]{4,}\b", text)})
    prompts = []
    for word in drawn.sample(words, run.repeats):
        part = text[: int(len(text) * drawn.random())]
        message = {"role": "user", "content": f"{part}\n\nWhat does {word} mean?"}
        rendered = tokenizer.apply_chat_template([message], add_generation_prompt=True)
        prompts.append(list(rendered["input_ids"]))
    return prompts
