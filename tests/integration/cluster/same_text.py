"""The same answers from one instance and from deployments of every shape.

    python -m tests.integration.cluster.same_text RECORD.json [REQUESTS [SEED]]

One `inlay serve` is asked first. Each deployment is asked twice, with many requests at once: the
second time caches and the store have what they could keep.
"""

import json
import random
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.integration.cluster.mixed_requests import Question, answer, mixed_questions
from tests.support.deployments import running_deployment
from tests.support.server import RunningServer

AT_ONCE = 8
ENGINE = {"device": "cpu", "threads": 1, "max_context_tokens": 2048}
_FILE = """
name = "same_text"
[engine]
device = "cpu"
threads = 1
max_context_tokens = 2048
cache.memory = "8MiB"
[dispatcher]
port = 0
policy = "round_robin"  # which divides all that can be divided
"""
_STORE = """
[store.nodes.n0]
memory = "64MiB"
"""
_COUNT = re.compile(r"^(inlay_\w+?)(?:_total)?(?:\{(.*)\})? ([\d.e+]+)$", re.MULTILINE)


def deployment_file(roles: Mapping[str, int], *, store: bool) -> str:
    """So many instances of each role; their pools hold a part of what is asked."""
    groups = "".join(
        f'[instances.{role}]\nrole = "{role}"\ncount = {n}\n' for role, n in roles.items()
    )
    return _FILE + groups + (_STORE if store else "")


SHAPES: dict[str, str] = {
    f"{shape}{', store' if store else ''}": deployment_file(roles, store=store)
    for shape, roles in {
        "1": {"both": 1},
        "1P+1D": {"prefill": 1, "decode": 1},
        "2P+2D": {"prefill": 2, "decode": 2},
    }.items()
    for store in (False, True)
}


def answers(url: str, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """All answers, asked for several at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(partial(answer, url), questions))


def expected_answers(questions: Sequence[Question]) -> list[dict[str, Any]]:
    """What one `inlay serve` says."""
    server = RunningServer(None, engine=ENGINE).wait_ready()
    try:
        return answers(server.url, questions)
    finally:
        server.kill()


def differences(
    questions: Sequence[Question],
    expected: Sequence[Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
) -> list[str]:
    """The answers that are not as expected, in words."""
    return [
        f"{question}: {one} instead of {right}"
        for question, right, one in zip(questions, expected, found, strict=True)
        if one != right
    ]


def paths(url: str) -> dict[str, int]:
    """How the KV of prompts came to where they were continued, as a dispatcher counts it.

    Returns:
        Requests that were divided; prompts whose KV another instance sent, and those of them that
        did not come; prompt tokens in total, and found on the device, in a tier, or not at all.
    """
    found: dict[str, float] = {}
    text = httpx.get(f"{url}/metrics", timeout=30).text
    for name, labels, value in _COUNT.findall(text):
        for key in (name, f"{name} {labels}"):
            found[key] = found.get(key, 0.0) + float(value)
    split = sum(
        value
        for key, value in found.items()
        if key.startswith("inlay_dispatch_decisions ") and 'outcome="split"' in key
    )
    store = found.get('inlay_tier_hit_tokens tier="store"', 0.0)
    hits = found["inlay_prefix_cache_hit_tokens"]
    counts = {
        "divided_requests": split,
        "prompts_over_exchange": found.get("inlay_kv_path_prompts", 0.0),
        "lost": found.get("inlay_kv_path_lost", 0.0),
        "looked_up_tokens": found["inlay_prefix_cache_query_tokens"],
        "cached_tokens": hits - store,
        "store_tokens": store,
    }
    return {name: int(value) for name, value in counts.items()}


def main() -> None:
    """Each shape once; the record is written after each."""
    record = Path(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 200
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.getrandbits(32)
    questions = mixed_questions(seed, count)
    expected = expected_answers(questions)
    found: list[dict[str, object]] = []
    for shape in SHAPES:
        found.append({"same_text": shape, "seed": seed} | _compare(shape, questions, expected))
        record.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(not all(one["passed"] for one in found))


def _compare(
    shape: str, questions: Sequence[Question], expected: Sequence[Mapping[str, Any]]
) -> dict[str, object]:
    began_s = time.monotonic()
    wrong: list[str] = []
    error: str | None = None
    counts: dict[str, int] = {}
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            running_deployment(Path(folder), SHAPES[shape]) as deployment,
        ):
            for _ in range(2):
                wrong += differences(questions, expected, answers(deployment.url, questions))
            counts = paths(deployment.url)
    except BaseException as problem:
        error = "".join(traceback.format_exception(problem, limit=-3))
    passed = error is None and not wrong
    print(f"{shape}: {2 * len(questions)} requests, {error or len(wrong)} {counts}", flush=True)
    return {
        "passed": passed,
        "error": error,
        "seconds": round(time.monotonic() - began_s, 1),
        "requests": 2 * len(questions),
        "different": wrong,
        "paths": counts,
    }


if __name__ == "__main__":
    main()
