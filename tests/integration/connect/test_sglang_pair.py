"""SGLang with prefill and decode apart: real servers and its router, KV over Inlay's engine.

They need the environments `sglang`, with `sglang-router`, and `vllm` (`--run peers`;
docs/guides/sglang.md), in which no other package has the name `mooncake`.
"""

import contextlib
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from benchmarks.connect.sglang_fleet import generate
from benchmarks.connect.vllm_pair import packed_inlay
from benchmarks.serving.server import Server, gauge, run_server, wait_until_ready
from benchmarks.serving.sglang import START_TIMEOUT_S, serve_sglang, site_packages
from tests.support.deployments import wait_until
from tests.support.directories import free_port

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

DRAWN = random.Random(17)
OUTPUT_TOKENS = 16
LOST_S = 60  # until an answer says that the other half is gone; without a loss it takes 300
APART = ("--disaggregation-transfer-backend", "mooncake", "--disaggregation-mode")
ENVIRON = {
    "MC_FORCE_TCP": "1",
    "SGLANG_HOST_IP": "127.0.0.1",
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "1",
}


class Pair(NamedTuple):
    """`router` sends prompts to `prefill`, whose KV goes to `decode`; `whole` does both.

    Attributes:
        bootstrap_port: where `prefill` tells others how to reach it.
        start: starts a server, given more of its command line.
    """

    whole: Server
    prefill: Server
    decode: Server
    router: Server
    bootstrap_port: int
    start: Callable[..., Server]


def prompt(tokens):
    return [DRAWN.randrange(3, 250) for _ in range(tokens)]


@pytest.fixture(scope="module")
def pair(sglang_environments, vllm_model):
    site = site_packages(sglang_environments)
    if not (site / "sglang_router").is_dir():
        pytest.skip("sglang-router is not in the environment `sglang`")
    with packed_inlay() as packages, contextlib.ExitStack() as stack:

        def start(*arguments):
            return stack.enter_context(
                serve_sglang(
                    sglang_environments,
                    vllm_model,
                    kv_tokens=16384,
                    streams=4,
                    arguments=arguments,
                    packages=[packages, packages / "inlay" / "connect" / "mooncake" / "shim"],
                    environ=ENVIRON,
                )
            )

        port = free_port()
        whole, decode = start(), start(*APART, "decode")
        prefill = start(*APART, "prefill", "--disaggregation-bootstrap-port", str(port))
        for server in (whole, prefill, decode):
            wait_until_ready(server, START_TIMEOUT_S)
        command = [
            str(sglang_environments / "vllm" / "bin" / "python"),
            "-m", "sglang_router.launch_router", "--pd-disaggregation", "--host", "127.0.0.1",
            "--prefill", prefill.url, str(port), "--decode", decode.url,
            "--prometheus-port", str(free_port()), "--disable-retries",
        ]  # fmt: skip
        router = stack.enter_context(run_server(command, {"PYTHONPATH": str(site)}))
        wait_until_ready(router, 60)
        wait_until(lambda: httpx.get(f"{router.url}/readiness").is_success, 60, "it has both")
        try:
            yield Pair(whole, prefill, decode, router, port, start)
        finally:
            with contextlib.suppress(RuntimeError):  # the last test kills one
                stack.close()


def transfers(pair):
    return int(gauge(pair.prefill, "sglang:kv_transfer_latency_ms_count"))


def half(tokens, port, room):
    """What both instances are asked, each for its half: `room` is where they meet."""
    return {
        "input_ids": tokens,
        "sampling_params": {"temperature": 0, "max_new_tokens": OUTPUT_TOKENS, "ignore_eos": True},
        "bootstrap_host": "127.0.0.1", "bootstrap_port": port, "bootstrap_room": room,
    }  # fmt: skip


def post(server, body):
    return httpx.post(f"{server.url}/generate", json=body, timeout=START_TIMEOUT_S)


def test_the_engine_is_inlays(pair):
    for server in (pair.prefill, pair.decode):
        maps = [Path(f"/proc/{one.pid}/maps").read_text() for one in server.processes()]
        assert any("/inlay/_native" in one for one in maps), "nobody has it loaded"


def test_the_texts_are_those_of_one_server(pair):
    before = transfers(pair)
    lengths = [1, 15, 16, 17, 500, 2000, *(DRAWN.randrange(2, 1000) for _ in range(14))]
    for length in lengths:
        asked = prompt(length)
        known = generate(pair.whole, asked, OUTPUT_TOKENS)
        assert generate(pair.router, asked, OUTPUT_TOKENS).token_ids == known.token_ids, length
    assert transfers(pair) - before == len(lengths)


def test_prompts_that_begin_alike(pair):
    shared, sent = prompt(640), transfers(pair)
    for _ in range(3):
        asked = shared + prompt(50)
        known = generate(pair.whole, asked, OUTPUT_TOKENS)
        assert generate(pair.router, asked, OUTPUT_TOKENS).token_ids == known.token_ids
    assert transfers(pair) - sent == 3


def test_decode_outlives_prefill(pair):
    """What waits for KV of an instance that is killed is an error; another one takes its place."""
    with ThreadPoolExecutor() as threads:
        waits = threads.submit(post, pair.decode, half(prompt(300), pair.bootstrap_port, 1))
        with pytest.raises(TimeoutError):
            waits.result(3)  # nobody has asked for the other half
        for process in pair.prefill.processes():
            process.kill()
        answer = waits.result(LOST_S)
        assert answer.status_code >= 400 and answer.text
        port = free_port()
        other = pair.start(*APART, "prefill", "--disaggregation-bootstrap-port", str(port))
        wait_until_ready(other, START_TIMEOUT_S)
        for room in (2, 3):
            asked = prompt(300)
            known = generate(pair.whole, asked, OUTPUT_TOKENS)
            halves = [
                threads.submit(post, server, half(asked, port, room))
                for server in (other, pair.decode)
            ]
            _, answer = [one.result(LOST_S) for one in halves]
            assert answer.json()["output_ids"] == known.token_ids
