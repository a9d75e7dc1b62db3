"""Tiers behind the pages of a server, as a user turns them on."""

import re
import time
from pathlib import Path

import httpx
import pytest

from tests.support.server import RunningServer, running_server

PROMPT = " ".join(f"{number}. Define lantern, harbour, bridge." for number in range(24))


def _ask(server: RunningServer) -> tuple[str, int, dict[str, int]]:
    """The text, the cached tokens of the prompt, and those of them that were loaded, by tier."""
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
    details = answer["usage"]["prompt_tokens_details"]
    return answer["choices"][0]["text"], details["cached_tokens"], details.get("tier_tokens", {})


def _ask_until_loaded(server: RunningServer) -> tuple[str, int, dict[str, int]]:
    """The demo model computes so quickly that on a busy machine a load may be cut off."""
    for _ in range(20):
        text, cached, loaded = _ask(server)
        if loaded:
            return text, cached, loaded
        httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
    raise AssertionError(f"nothing was loaded: {server.gauges()}")


def _wait_written(server: RunningServer, num_bytes: int) -> None:
    deadline_s = time.monotonic() + 20
    while server.gauges()["inlay_tier_written_bytes_total"] < num_bytes:
        assert time.monotonic() < deadline_s, server.gauges()
        time.sleep(0.02)


def _tier_hits(server: RunningServer) -> dict[str, float]:
    text = httpx.get(f"{server.url}/metrics", timeout=30).text
    found = re.findall(r'inlay_tier_hit_tokens_total\{tier="(\w+)"\} (\S+)', text)
    return {tier: float(value) for tier, value in found}


@pytest.mark.parametrize("tier", ["host", "disk"])
def test_a_prompt_is_loaded_from(tier: str, tmp_path: Path) -> None:
    cache = {"host": "64MiB", "disk": f"{tmp_path}/kv:1GiB"}
    engine = {"device": "cpu", "cache": cache, "scheduler": {"prefill_chunk": 32}}
    with running_server(None, engine=engine) as server:
        first, cached, _ = _ask(server)
        assert cached == 0
        _wait_written(server, 1)
        if tier == "host":
            httpx.post(f"{server.url}/reset_prefix_cache").raise_for_status()
            text, cached, loaded = _ask_until_loaded(server)
            hits = _tier_hits(server)
    if tier == "disk":
        with running_server(None, engine=engine) as server:
            text, cached, loaded = _ask_until_loaded(server)
            hits = _tier_hits(server)
    assert text == first
    assert loaded[tier] > 0
    assert cached >= loaded[tier]
    assert hits[tier] >= loaded[tier]


def test_a_store_that_is_not_there_is_an_error_at_start() -> None:
    server = RunningServer(None, engine={"device": "cpu", "cache": {"store": "127.0.0.1:1"}})
    assert server.wait(60) != 0
    assert "127.0.0.1:1" in server.log
