"""vLLM servers that publish KV events, and a deployment of Inlay in front of them."""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.serving.server import Server, gauge, wait_until_ready
from benchmarks.serving.vllm import START_TIMEOUT_S, serve_vllm

BLOCK_TOKENS = 32


@contextlib.contextmanager
def fleet(
    environment: Path, model: Path, count: int, *, context_tokens: int, kv_tokens: int
) -> Iterator[list[Server]]:
    """Servers of one model, all ready. They start one after the other."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(count):
            server = serve_vllm(
                environment,
                model,
                context_tokens=context_tokens,
                kv_tokens=kv_tokens,
                streams=4,
                all_cores=True,
                block_tokens=BLOCK_TOKENS,
                kv_events=kv_events(),
            )
            servers.append(stack.enter_context(server))
            wait_until_ready(servers[-1], START_TIMEOUT_S)
        yield servers


def kv_events() -> dict[str, Any]:
    """`--kv-events-config` on ports that are free now."""
    with socket.socket() as first, socket.socket() as second:
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in (first, second)]
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports[0]}",
        "replay_endpoint": f"tcp://*:{ports[1]}",
    }


def deployment_text(
    model: Path, urls: Sequence[str], *, policy: str = "kv_centric", port: int = 0
) -> str:
    """A deployment's file with these servers as `e0`, `e1` and so on."""
    tables = [f'name = "foreign"\nmodel = "{model}"']
    tables += [f'[foreign.e{number}]\nurl = "{url}"' for number, url in enumerate(urls)]
    tables += [f'[dispatcher]\nport = {port}\npolicy = "{policy}"']
    tables += ['[dispatcher.serve]\nserved_model_name = "default"\npage = false']
    return "\n".join(tables) + "\n"


def hit_tokens(server: Server) -> int:
    """Prompt tokens that its own cache had, since it started."""
    return int(gauge(server, 'vllm:prompt_tokens_by_source_total{source="local_cache_hit"'))
