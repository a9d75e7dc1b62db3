"""SGLang servers that share prefixes through Inlay's store and publish KV events."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from benchmarks.connect.vllm_fleet import kv_events
from benchmarks.connect.vllm_pair import packed_inlay
from benchmarks.serving.server import Server, gauge, wait_until_ready
from benchmarks.serving.sglang import START_TIMEOUT_S, serve_sglang


def hicache(master: str, memory: str) -> dict[str, Any]:
    """`--hicache-storage-backend-extra-config` for Inlay's store."""
    return {
        "backend_name": "inlay",
        "module_path": "inlay.connect.sglang",
        "class_name": "InlayHiCache",
        "interface_v1": 1,
        "master": master,
        "memory": memory,
    }


@contextlib.contextmanager
def fleet(
    environments: Path, model: Path, count: int, *, master: str, kv_tokens: int
) -> Iterator[list[Server]]:
    """Servers of one model, all ready; they start at the same time."""
    with packed_inlay() as packages, contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                serve_sglang(
                    environments,
                    model,
                    kv_tokens=kv_tokens,
                    streams=4,
                    hicache=hicache(master, "64MiB"),
                    kv_events=kv_events(),
                    packages=[packages],
                )
            )
            for _ in range(count)
        ]
        for server in servers:
            wait_until_ready(server, START_TIMEOUT_S)
        yield servers


class Generated(NamedTuple):
    """What `/generate` gave, greedily.

    Attributes:
        cached: prompt tokens by where they were: `device`, `host`, `storage`.
    """

    token_ids: list[int]
    cached: dict[str, int]


def generate(server: Server, prompt: list[int], output_tokens: int, salt: str = "") -> Generated:
    """Ask a server itself for exactly so many tokens."""
    sampling = {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True}
    body: dict[str, Any] = {"input_ids": prompt, "sampling_params": sampling}
    if salt:
        body["cache_salt"] = salt
    answer = httpx.post(f"{server.url}/generate", json=body, timeout=120)
    answer.raise_for_status()
    meta = answer.json()["meta_info"]
    found = meta.get("cached_tokens_details") or {}
    cached = {name: count for name, count in found.items() if isinstance(count, int) and count}
    return Generated(answer.json()["output_ids"], cached)


def hit_tokens(server: Server) -> int:
    """Prompt tokens that its own cache had, since it started."""
    return int(gauge(server, 'sglang:cached_tokens_total{cache_source="device"'))
