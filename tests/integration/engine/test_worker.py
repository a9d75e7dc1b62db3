"""The engine in its own process, seen through `EngineClient`."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from inlay.cache import CacheConfig
from inlay.core.errors import (
    ConfigError,
    ContextLengthError,
    EngineDiedError,
    EngineError,
    EngineStartError,
    ModelNotFoundError,
    OverloadedError,
    RequestError,
    StructureError,
)
from inlay.core.messages import Structure
from inlay.engine import client as client_module
from inlay.engine.client import EngineClient
from inlay.engine.config import EngineConfig, SchedulerConfig
from tests.integration.engine.engines import ENDLESS, request
from tests.support.pause import go_on, pause

PAGES = 4000  # more than an endless answer takes


def _config(directory, **options):
    options = {"cache": CacheConfig(pages=PAGES)} | options
    return EngineConfig(model=str(directory), device="cpu", seed=0, **options)


@pytest.fixture(scope="module")
async def client(patient_directory):
    client = await EngineClient.start(_config(patient_directory), timeout_s=60)
    yield client
    await client.aclose()


async def _collect(client, message):
    return [output async for output in client.generate(message)]


def _tokens(outputs):
    return [token for o in outputs for choice in o.choices for token in choice.token_ids]


async def _until(condition, timeout_s=60.0):
    """Wait for something that another process does."""
    end = time.monotonic() + timeout_s
    while not await condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


async def _all_free(client):
    stats = await client.stats()
    return (
        not stats.running
        and not stats.waiting
        and (stats.pages_free + stats.pages_cached == stats.pages_total)
    )


async def test_the_process_gives_what_the_engine_gives(client, tiny):
    params = {"max_tokens": 20, "temperature": 0.9, "seed": 4, "ignore_eos": True}
    outputs = await _collect(client, request("a", range(3, 40), **params))
    with tiny.engine() as engine:
        engine.add(request("a", range(3, 40), **params))
        expected = []
        while engine.num_live:
            expected += engine.step()
    assert [o.choices for o in outputs] == [o.choices for o in expected]
    assert (client.info.architecture, client.info.num_pages) == ("qwen3_moe", PAGES)
    assert outputs[-1].times.finished_s <= time.monotonic()


async def test_many_at_once(client):
    alone = [
        _tokens(await _collect(client, request(f"alone-{n}", [n], seed=n, max_tokens=15)))
        for n in range(20)
    ]
    together = await asyncio.gather(
        *(_collect(client, request(f"both-{n}", [n], seed=n, max_tokens=15)) for n in range(20))
    )
    assert [_tokens(outputs) for outputs in together] == alone


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"temperature": -1.0}, RequestError, "temperature"),
        ({"max_tokens": 10**9}, ContextLengthError, "prompt"),
        ({"structure": Structure("regex", "(")}, StructureError, "response_format"),
    ],
)
async def test_refusals_arrive_as_they_were_raised(client, fields, error, param):
    with pytest.raises(error) as caught:
        await _collect(client, request("bad", [5], **fields))
    assert caught.value.param == param


async def test_wrong_types_do_not_hang(client):
    with pytest.raises(RequestError, match=r"wrong type: Expected `int`, got `str`"):
        await _collect(client, request("type", [5], min_tokens="five"))
    with pytest.raises(RequestError, match="cannot be sent"):
        await _collect(client, request("size", [5], seed=2**70))
    assert client.alive


async def test_an_id_in_use_is_refused(client):
    stream = client.generate(request("twice", [5], max_tokens=ENDLESS, ignore_eos=True))
    await anext(stream)
    with pytest.raises(RequestError, match="in use"):
        await _collect(client, request("twice", [5]))
    await stream.aclose()


async def test_an_id_can_be_used_again_at_once(client):
    for _ in range(20):
        stream = client.generate(request("again", [5], max_tokens=ENDLESS, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        outputs = await _collect(client, request("again", [6], max_tokens=3, ignore_eos=True))
        assert {output.request_id for output in outputs} == {"again"}
        assert outputs[-1].choices[0].finish_reason == "length"


async def test_an_engine_that_does_not_answer(client, monkeypatch):
    pause(client.pid)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "_ANSWER_S", 0.1)
            for call in (client.stats(), client.reset_prefix_cache()):
                with pytest.raises(EngineError, match=r"did not answer in 0\.1 s"):
                    await call
    finally:
        go_on(client.pid)
    await _collect(client, request("after", [5], max_tokens=2))
    assert (await client.stats()).pages_total == PAGES


@pytest.mark.parametrize("how", ["close", "cancel", "break"])
async def test_leaving_the_stream_frees_the_pages(client, how):
    tokens = ENDLESS // 3
    message = request(f"leave-{how}", range(3, 100), n=3, max_tokens=tokens, ignore_eos=True)
    if how == "cancel":
        task = asyncio.create_task(_collect(client, message))
        await _until(lambda: _runs(client))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        stream = client.generate(message)
        async for _ in stream:
            break
        await stream.aclose()
    await _until(lambda: _all_free(client))


async def _runs(client):
    return (await client.stats()).running > 0


async def test_reset_prefix_cache(client):
    prompt = list(range(7, 107))
    cached = []
    for number in range(3):
        if number == 2:
            await client.reset_prefix_cache()
        outputs = await _collect(client, request(f"reset-{number}", prompt, max_tokens=1))
        cached.append(outputs[0].cached_tokens)
    assert cached == [0, 96, 0]


async def test_a_storm_of_cancels(client):
    """200 requests, half of them abandoned at a random moment: none lost, no page leaked."""
    rng = random.Random(0)

    async def one(number):
        message = request(
            f"storm-{number}",
            [5 + number % 7] * rng.choice([1, 30, 120]),
            max_tokens=rng.choice([1, 10, 60]),
            n=rng.choice([1, 1, 2]),
            seed=number,
            ignore_eos=True,
            structure=rng.choice([None, None, Structure("regex", "[a-z]{200}")]),
        )
        if number % 2:
            return await _collect(client, message)
        try:
            async with asyncio.timeout(rng.uniform(0, 0.5)):
                return await _collect(client, message)
        except TimeoutError:
            return None

    results = await asyncio.gather(*(one(number) for number in range(200)))
    assert all(outputs[-1].finished for outputs in results if outputs)
    assert all(results[1::2]), "a request got no answer"
    await _until(lambda: _all_free(client))
    await client.reset_prefix_cache()
    assert (await client.stats()).pages_free == PAGES


async def test_idle_means_idle(client):
    await _collect(client, request("before", [5], max_tokens=3))
    process = psutil.Process(client.pid)

    async def idle():
        before = process.cpu_times()
        await asyncio.sleep(1.0)
        after = process.cpu_times()
        return after.user + after.system - before.user - before.system <= 0.02

    # Kernel threads spin for a moment after their last work, which on a busy machine ends late.
    await _until(idle)


async def test_a_full_queue(patient_directory):
    scheduler = SchedulerConfig(max_running=1, max_waiting=1)
    client = await EngineClient.start(_config(patient_directory, scheduler=scheduler))
    try:
        endless = {"max_tokens": ENDLESS, "ignore_eos": True}
        streams = [client.generate(request(n, [5], **endless)) for n in range(2)]
        await anext(streams[0])
        second = asyncio.ensure_future(anext(streams[1]))
        await _until(lambda: _waits(client))
        with pytest.raises(OverloadedError, match="1 requests are waiting, the limit is 1"):
            await _collect(client, request("late", [5], max_tokens=1))
        await streams[0].aclose()
        assert (await second).choices
        await streams[1].aclose()
    finally:
        await client.aclose()


async def _waits(client):
    return (await client.stats()).waiting > 0


async def test_a_killed_worker_fails_every_request(patient_directory):
    client = await EngineClient.start(_config(patient_directory))
    endless = {"max_tokens": ENDLESS, "ignore_eos": True}
    tasks = [asyncio.create_task(_collect(client, request(n, [5], **endless))) for n in range(10)]
    await _until(lambda: _runs(client))
    os.kill(client.pid, signal.SIGKILL)
    errors = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert {type(error) for error in errors} == {EngineDiedError}
    assert "killed by SIGKILL" in str(errors[0])
    assert not client.alive
    for call in (client.stats(), client.reset_prefix_cache(), _collect(client, request(99, [5]))):
        with pytest.raises(EngineDiedError):
            await call
    await client.aclose()


async def test_closing_ends_process_requests_and_directory(patient_directory, monkeypatch):
    client = await EngineClient.start(_config(patient_directory))
    directory = client._directory
    assert directory.stat().st_mode & 0o777 == 0o700
    message = request(1, [5], max_tokens=ENDLESS, ignore_eos=True)
    task = asyncio.create_task(_collect(client, message))
    await _until(lambda: _runs(client))
    # It is not killed, and ends in the middle of its work.
    monkeypatch.setattr(client_module, "_STOP_GRACE_S", 60.0)
    await asyncio.wait_for(client.aclose(), 30)
    await client.aclose()
    assert client._process.returncode == 0
    with pytest.raises(EngineDiedError, match="stopped"):
        await task
    assert not directory.exists()
    assert not psutil.pid_exists(client.pid)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "/no/such/model"}, ModelNotFoundError, "/no/such/model"),
        (
            {"cache": CacheConfig(pages=2), "max_context_tokens": 500},
            ConfigError,
            "but the cache has 2",
        ),
    ],
)
async def test_reasons_not_to_start(tiny_directory, change, error, message):
    fields = {"model": str(tiny_directory), "device": "cpu"} | change
    with pytest.raises(error, match=message) as caught:
        await EngineClient.start(EngineConfig(**fields))
    assert "Traceback" not in str(caught.value)


async def test_a_start_that_takes_too_long(tiny_directory):
    with pytest.raises(EngineStartError, match="not ready after 0.1 s"):
        await EngineClient.start(_config(tiny_directory), timeout_s=0.1)


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("tokenizers", r"cannot start \(OSError: libgomp is not here\): set INLAY_LOG=debug"),
        ("zmq", r"its log ends with:(?s:.*)libgomp is not here"),
    ],
)
async def test_a_worker_that_breaks_at_start_says_why(
    tiny_directory, monkeypatch, package, message
):
    with tempfile.TemporaryDirectory() as broken:
        package = Path(broken, package)
        package.mkdir()
        (package / "__init__.py").write_text("raise OSError('libgomp is not here')")
        monkeypatch.setenv("PYTHONPATH", f"{broken}:{os.environ.get('PYTHONPATH', '')}")
        with pytest.raises(EngineStartError, match=message):
            await EngineClient.start(_config(tiny_directory))


_PARENT = """
import asyncio, sys
from inlay.cache import CacheConfig
from inlay.engine import EngineClient, EngineConfig

async def main():
    config = EngineConfig(model=sys.argv[1], device="cpu", cache=CacheConfig(pages=50))
    if sys.argv[2] == "loading":
        asyncio.get_running_loop().call_later(0.3, lambda: print(0, flush=True))
    client = await EngineClient.start(config)
    print(client.pid, client._directory, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("state", ["serving", "loading"])
def test_a_killed_parent_takes_the_worker_along(tiny_directory, state):
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tiny_directory), state],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        line = parent.stdout.readline().split()
        workers = psutil.Process(parent.pid).children()
        assert len(workers) == 1
        parent.kill()
        _, alive = psutil.wait_procs(workers, timeout=30)
        assert not alive
    if state == "serving":
        assert not Path(line[1]).exists()


def test_the_client_loads_no_torch():
    code = "import inlay.engine.client, inlay.engine.config, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
