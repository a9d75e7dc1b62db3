"""Runner of connect/vllm_prefix."""

import random
import tempfile
import time
from collections.abc import Generator
from pathlib import Path
from statistics import fmean

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.connect.vllm_pair import BLOCK_TOKENS, external_tokens, kv_transfer, pair
from benchmarks.store.instances import ask, store_master
from benchmarks.triples import Samples
from tests.support.tiny_models import make_tiny_model

_SAVED_S = 2.0  # what one instance has computed is in the store by then


def measure(run: Run) -> Generator[Samples, None, None]:
    """A prompt that the other instance computed, beside one that nobody did, in pairs."""
    environment = None if run.quick else peers.environment(run.peers, "vllm")  # it starts slowly
    if environment is None:
        return
    with tempfile.TemporaryDirectory() as name, store_master() as master:
        model = make_tiny_model(Path(name) / "random", **run.workload["random"])
        config = kv_transfer(store=master, contribute=run.workload["contribute"])
        size = int(run.workload["context_tokens"])
        with pair(environment, model, config, context_tokens=size) as (first, second):
            for params in run.params("ttft_ratio"):
                tokens = params["prompt_tokens"]
                drawn = random.Random(run.seeds[0])

                def fresh(tokens: int = tokens, drawn: random.Random = drawn) -> list[int]:
                    vocab = run.workload["random"]["vocab_size"]
                    return [drawn.randrange(3, vocab) for _ in range(tokens)]

                own = []
                ratios, alone_ms, shared_ms, same = [], [], [], []
                for server in (first, second):
                    ask(server, fresh(), 2)  # the first request of a server takes longer
                for _ in range(run.repeats):
                    prompt = fresh()
                    known = ask(first, prompt, run.workload["output_tokens"])
                    again = ask(first, prompt, run.workload["output_tokens"])
                    own.append(again.token_ids == known.token_ids)  # by vLLM's own cache
                    time.sleep(_SAVED_S)
                    before = external_tokens(second)
                    shared = ask(second, prompt, run.workload["output_tokens"])
                    came = external_tokens(second) - before
                    expected = (tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
                    if came != expected:
                        raise RuntimeError(f"{came} of {expected} tokens came from the store")
                    alone = ask(second, fresh(), run.workload["output_tokens"])
                    ratios.append(shared.ttft_ms / alone.ttft_ms)
                    alone_ms.append(alone.ttft_ms)
                    shared_ms.append(shared.ttft_ms)
                    same.append(shared.token_ids == known.token_ids)
                yield Samples(name="ttft_ratio", params=params, values=ratios)
                yield Samples(name="shared_ttft_ms", params=params, values=shared_ms)
                yield Samples(name="own_ttft_ms", params=params, values=alone_ms)
                yield Samples(name="identical_texts", params=params, values=[fmean(same)])
                yield Samples(name="identical_own_cache", params=params, values=[fmean(own)])
