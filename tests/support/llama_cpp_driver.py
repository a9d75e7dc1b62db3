"""What llama.cpp makes of a GGUF file; a program for an environment that has llama-cpp-python.

Reads `{"texts": [TEXT...], "windows": [[TOKEN...]...]}`, and prints the tokens of each text, and of
each window the logarithm of what its tokens but the first were given, before it.
"""

import json
import sys

import numpy as np
from llama_cpp import Llama  # type: ignore[import-not-found]

asked = json.load(sys.stdin)
longest = max(map(len, asked["windows"]))
model = Llama(
    sys.argv[1], n_ctx=longest, n_batch=longest, n_threads=2, logits_all=True, verbose=False
)


def logprobs(window: list[int]) -> list[float]:
    model.reset()
    model.eval(window)
    logits = np.array(model.scores[: len(window) - 1], np.float64)
    logits -= logits.max(1, keepdims=True)
    chosen = logits[np.arange(len(window) - 1), window[1:]]
    found: list[float] = (chosen - np.log(np.exp(logits).sum(1))).tolist()
    return found


json.dump(
    {
        "tokens": [
            model.tokenize(text.encode(), add_bos=False, special=False) for text in asked["texts"]
        ],
        "logprobs": [logprobs(window) for window in asked["windows"]],
    },
    sys.stdout,
)
