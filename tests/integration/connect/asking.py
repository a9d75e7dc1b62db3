"""Completions of token ids, asked of engines and of deployments before them."""

import httpx


def body(tokens, count, **fields):
    return {
        "model": "default", "prompt": tokens, "max_tokens": count, "temperature": 0,
        "ignore_eos": True, "return_token_ids": True, **fields,
    }  # fmt: skip


def ask(url, tokens, count=8, **fields):
    answer = httpx.post(f"{url}/v1/completions", json=body(tokens, count, **fields), timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def token_ids(answer):
    return answer["choices"][0]["token_ids"]


def blocks_of_each(deployment):
    instances = httpx.get(f"{deployment.url}/cluster/status", timeout=30).json()["instances"]
    return [one["num_blocks"] for one in instances]


def known_blocks(deployment):
    return sum(blocks_of_each(deployment))
