"""Plain requests to any OpenAI-compatible server, with what all of them understand."""

import random
import time

import httpx

TIMEOUT_S = 120
WORDS = "lantern river carpenter letter bridge morning ferry panel stair harbour".split()


def first_token_s(url: str, max_tokens: int) -> float:
    """Stream a completion to its end; when its first token came, on `time.perf_counter`.

    Raises:
        RuntimeError: none came.
    """
    body = {
        "prompt": "Define lantern.", "max_tokens": max_tokens,
        "temperature": 0, "stream": True,
    }  # fmt: skip
    first = None
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=TIMEOUT_S) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if first is None and line.startswith("data: {"):
                first = time.perf_counter()
    if first is None:
        raise RuntimeError(f"{url} answered without a token")
    return first


def chat(url: str, requests: int, prompt_words: int, max_tokens: int, seed: int) -> None:
    """Ask one question after the other, each with other words, and wait for each answer."""
    draw = random.Random(seed)
    with httpx.Client(timeout=TIMEOUT_S) as client:
        for _ in range(requests):
            question = " ".join(draw.choices(WORDS, k=prompt_words))
            body = {
                "messages": [{"role": "user", "content": question}],
                "max_tokens": max_tokens, "temperature": 0,
            }  # fmt: skip
            client.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
