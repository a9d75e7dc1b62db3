"""SGLang with prefill and decode apart: real servers and its router, KV over Inlay's engine.

They need the environments `sglang`, with `sglang-router`, and `vllm` (`--run peers`;
docs/guides/sglang.md), in which no other package has the name `mooncake`.
"""

import contextlib
import random
import signal
from typing import NamedTuple

import httpx
import pytest

from benchmarks.connect.sglang_fleet import generate
from benchmarks.connect.vllm_pair import packed_inlay
from benchmarks.serving.server import Server, gauge, run_server, wait_until_ready
from benchmarks.serving.sglang import START_TIMEOUT_S, serve_sglang, site_packages
from tests.support.directories import free_port

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]

DRAWN = random.Random(17)
OUTPUT_TOKENS = 16
LOST_S = 60  # until an answer says that the other half is gone
ENVIRON = {
    "MC_FORCE_TCP": "1",
    "SGLANG_HOST_IP": "127.0.0.1",
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "1",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "20",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "20",
}


class Pair(NamedTuple):
    """`router` sends prompts to `prefill`, whose KV goes to `decode`; `whole` does both."""

    whole: Server
    prefill: Server
    decode: Server
    router: Server


def prompt(tokens):
    return [DRAWN.randrange(3, 250) for _ in range(tokens)]


@pytest.fixture(scope="module")
def pair(sglang_environments, vllm_model):
    site = site_packages(sglang_environments)
    if not (site / "sglang_router").is_dir():
        pytest.skip("sglang-router is not in the environment `sglang`")
    bootstrap = str(free_port())
    apart = ["--disaggregation-transfer-backend", "mooncake", "--disaggregation-mode"]
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

        whole = start()
        prefill = start(*apart, "prefill", "--disaggregation-bootstrap-port", bootstrap)
        decode = start(*apart, "decode")
        for server in (whole, prefill, decode):
            wait_until_ready(server, START_TIMEOUT_S)
        router = stack.enter_context(
            run_server(
                [
                    str(sglang_environments / "vllm" / "bin" / "python"),
                    "-m", "sglang_router.launch_router", "--pd-disaggregation",
                    "--host", "127.0.0.1", "--prometheus-port", str(free_port()),
                    "--prefill", prefill.url, bootstrap, "--decode", decode.url,
                    "--disable-retries",
                ],
                {"PYTHONPATH": str(site)},
            )
        )  # fmt: skip
        wait_until_ready(router, 60)
        try:
            yield Pair(whole, prefill, decode, router)
        finally:
            with contextlib.suppress(RuntimeError):  # the last test kills one
                stack.close()


def transfers(pair):
    return int(gauge(pair.prefill, "sglang:kv_transfer_latency_ms_count"))


def test_the_texts_are_those_of_one_server(pair):
    before = transfers(pair)
    lengths = [1, 15, 16, 17, 500, 2000, *(DRAWN.randrange(2, 1000) for _ in range(14))]
    for length in lengths:
        asked = prompt(length)
        known = generate(pair.whole, asked, OUTPUT_TOKENS)
        assert generate(pair.router, asked, OUTPUT_TOKENS).token_ids == known.token_ids, length
    assert transfers(pair) - before == len(lengths)


def test_a_prefix_that_prefill_knows_is_sent_all_the_same(pair):
    shared = prompt(640)
    for _ in range(2):
        asked = shared + prompt(50)
        known = generate(pair.whole, asked, OUTPUT_TOKENS)
        assert generate(pair.router, asked, OUTPUT_TOKENS).token_ids == known.token_ids


def test_decode_outlives_prefill(pair):
    """What waits for a prefill instance that was killed is answered with an error."""
    for process in pair.prefill.processes():
        process.send_signal(signal.SIGKILL)
    body = {
        "input_ids": prompt(300),
        "sampling_params": {"temperature": 0, "max_new_tokens": 4},
        "bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 1,
    }  # fmt: skip
    answer = httpx.post(f"{pair.decode.url}/generate", json=body, timeout=LOST_S)
    assert answer.status_code >= 400 and answer.text
    assert httpx.get(f"{pair.decode.url}/health", timeout=30).status_code == 200
