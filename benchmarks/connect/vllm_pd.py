"""Runner of connect/vllm_pd."""

import random
import tempfile
from collections.abc import Generator
from pathlib import Path
from statistics import fmean

from benchmarks import peers
from benchmarks.case import Run
from benchmarks.connect.vllm_pair import external_tokens, hand_over, kv_transfer, pair
from benchmarks.store.instances import ask
from benchmarks.triples import Samples
from tests.support.tiny_models import make_tiny_model


def measure(run: Run) -> Generator[Samples, None, None]:
    """Each prompt by the pair, and by the decoding instance alone (another salt, so that nothing
    of it is found).

    The same prompt asked once more finds the instance's own cache: how often its text then differs
    is how far vLLM's kernels agree with themselves where a prompt is computed in other pieces.
    """
    environment = None if run.quick else peers.environment(run.peers, "vllm")  # it starts slowly
    if environment is None:
        return
    with tempfile.TemporaryDirectory() as name:
        model = make_tiny_model(Path(name) / "random", **run.workload["random"])
        size = int(run.workload["context_tokens"])
        with pair(environment, model, kv_transfer(), context_tokens=size) as (prefill, decode):
            (params,) = run.params("identical_texts")
            drawn = random.Random(run.seeds[0])
            vocab, outputs = run.workload["random"]["vocab_size"], run.workload["output_tokens"]
            ratios, same, own = [], [], []
            for number in range(run.repeats):
                low, high = run.workload["prompt_tokens"]
                prompt = [drawn.randrange(3, vocab) for _ in range(drawn.randint(low, high))]
                alone = ask(decode, prompt, outputs, cache_salt=f"alone {number}")
                again = ask(decode, prompt, outputs, cache_salt=f"alone {number}")
                own.append(again.token_ids == alone.token_ids)
                params_of = hand_over(prefill, prompt, f"pair {number}").params
                before = external_tokens(decode)
                both = ask(
                    decode, prompt, outputs, cache_salt=f"pair {number}",
                    kv_transfer_params=params_of,
                )  # fmt: skip
                came = external_tokens(decode) - before
                if came != len(prompt):
                    raise RuntimeError(f"{came} of {len(prompt)} tokens came from the other one")
                ratios.append(both.ttft_ms / alone.ttft_ms)
                same.append(both.token_ids == alone.token_ids)
            yield Samples(name="identical_texts", params=params, values=[fmean(same)])
            yield Samples(name="identical_own_cache", params=params, values=[fmean(own)])
            yield Samples(name="ttft_ratio", params=params, values=ratios)
