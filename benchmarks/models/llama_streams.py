"""Prompt and decode rates of llama.cpp, as a program for the environment of llama-cpp-python.

    python llama_streams.py FILE THREADS PROMPT OUTPUT STREAMS...

Prints one JSON line for each number of streams: so many random prompts of PROMPT tokens are
computed one after the other, then OUTPUT steps are timed in which each stream gets one token.
Nothing is sampled. Keys and values, batches and flash attention are as llama.cpp's server has them.
Imports nothing of Inlay.
"""

import json
import random
import sys
import time
from ctypes import c_int32
from typing import Any

import llama_cpp as llama

BATCH_TOKENS = 2048


def main() -> None:
    """Load the model, then measure each number of streams."""
    file, threads, prompt_tokens, output_tokens, *streams = sys.argv[1:]
    llama.llama_backend_init()
    options = llama.llama_model_default_params()
    options.use_extra_bufts = False  # with AMX its own layout crashes (llama-cpp-python 0.3.36)
    model = llama.llama_model_load_from_file(file.encode(), options)
    if not model:
        sys.exit(f"llama.cpp cannot load {file}")
    for count in map(int, streams):
        rates = measure(model, int(threads), int(prompt_tokens), int(output_tokens), count)
        print(json.dumps({"streams": count, **rates}), flush=True)


def measure(
    model: Any, threads: int, prompt_tokens: int, output_tokens: int, streams: int
) -> dict[str, float]:
    """Tokens per second of prompts and of decode."""
    params = llama.llama_context_default_params()
    params.n_ctx = streams * (prompt_tokens + output_tokens + 1)
    params.n_batch = BATCH_TOKENS
    params.n_seq_max = streams
    params.n_threads = params.n_threads_batch = threads
    context = llama.llama_init_from_model(model, params)
    if not context:
        sys.exit(f"llama.cpp has no memory for {streams} streams")
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    draw = random.Random(streams)
    prompts = [[draw.randrange(vocabulary) for _ in range(prompt_tokens)] for _ in range(streams)]
    batch = llama.llama_batch_init(BATCH_TOKENS, 0, 1)
    decode(context, batch, [(token, at, 0) for at, token in enumerate(prompts[0][:8])])  # warm
    llama.llama_memory_clear(llama.llama_get_memory(context), True)
    begin = time.perf_counter()
    for stream, prompt in enumerate(prompts):
        for first in range(0, prompt_tokens, BATCH_TOKENS):
            part = prompt[first : first + BATCH_TOKENS]
            decode(context, batch, [(token, first + i, stream) for i, token in enumerate(part)])
    prompts_s = time.perf_counter() - begin
    begin = time.perf_counter()
    for step in range(output_tokens):
        rows = [(prompt[step % prompt_tokens], prompt_tokens + step) for prompt in prompts]
        decode(context, batch, [(*row, stream) for stream, row in enumerate(rows)], last=streams)
    decode_s = time.perf_counter() - begin
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    return {
        "prefill_tokens_per_s": streams * prompt_tokens / prompts_s,
        "decode_tokens_per_s": streams * output_tokens / decode_s,
    }


def decode(context: Any, batch: Any, rows: list[tuple[int, int, int]], last: int = 1) -> None:
    """Compute rows of (token, position, stream), with the logits of the `last` ones."""
    batch.n_tokens = len(rows)
    for i, (token, position, stream) in enumerate(rows):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, c_int32(1)
        batch.seq_id[i][0] = stream
        batch.logits[i] = i >= len(rows) - last
    if llama.llama_decode(context, batch):
        sys.exit(f"llama.cpp could not compute {len(rows)} rows")
    llama.llama_synchronize(context)


if __name__ == "__main__":
    main()
