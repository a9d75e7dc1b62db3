"""A request's life at a foreign engine, with an engine that says what the test wants."""

import asyncio
import contextlib

import pytest

from inlay.connect.foreign.about import About
from inlay.connect.foreign.dialect import Facts
from inlay.connect.foreign.names import BlockNames
from inlay.connect.foreign.requests import Requests
from inlay.connect.foreign.vllm import Vllm
from inlay.core.block_hash import chain
from inlay.core.clock import FakeClock
from inlay.core.errors import ContextLengthError, EngineDiedError, RequestError
from inlay.core.messages import GenerateRequest, SamplingParams
from inlay.core.token_ids import pack_token_ids
from tests.support.kv_publisher import stored
from tests.support.tiny_models import make_tiny_model

PROMPT = list(range(3, 53))


def chunk(token, finish=None):
    return {"choices": [{"text": f"<{token}>", "token_ids": [token], "finish_reason": finish}]}


class Http:
    """Answers each choice by a script; `asked` has the bodies."""

    url = "http://engine:1"

    def __init__(self, *script):
        self.script, self.asked, self.left = script, [], 0

    @contextlib.asynccontextmanager
    async def stream(self, path, body, request_id):
        self.asked.append(body)
        try:
            yield self.events()
        finally:
            self.left += 1

    async def events(self):
        for step in self.script:
            await asyncio.sleep(0)
            if isinstance(step, Exception):
                raise step
            if step is None:
                await asyncio.Event().wait()
            yield step


@pytest.fixture(scope="module")
def about(tmp_path_factory):
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", "qwen3")
    facts = Facts(version="1", model="m", context_tokens=100, block_tokens=16, max_running=8,
                  prefill_chunk=64)  # fmt: skip
    return About(Vllm(), facts, model, "secret", 16)


def message(**fields):
    params = SamplingParams(**{"max_tokens": 5, "seed": 7, **fields.pop("params", {})})
    plain = {"request_id": "1:r", "prompt": pack_token_ids(PROMPT), "arrival_s": 0.0}
    return GenerateRequest(**plain, params=params, **fields)


class Bench:
    def __init__(self, about, *script):
        self.http = Http(*script)
        self.names = BlockNames(about.key_of, 16)
        self.deaths = []
        self.requests = Requests(
            Vllm(), self.http, about, self.names, FakeClock(1.0),
            changed=lambda: None, died=self.died,
        )  # fmt: skip

    async def died(self, error):
        self.deaths.append(str(error))

    async def outputs(self):
        """Until all have ended."""
        found = []
        async with asyncio.timeout(20):
            while self.requests._live:
                await asyncio.sleep(0)
                found += self.requests.take()
        return found + self.requests.take()


def run(about, script, *messages, before=lambda bench: None):
    async def main():
        bench = Bench(about, *script)
        before(bench)
        for one in messages:
            bench.requests.add(one)
        return bench, await bench.outputs()

    return asyncio.run(main())


def test_an_answer(about):
    bench, found = run(about, [chunk(5), chunk(6, "length")], message())
    assert [one.choices[0].token_ids for one in found] == [(5,), (6,)]
    assert [one.finished for one in found] == [False, True]
    assert (found[0].prompt_tokens, found[0].cached_tokens, found[1].prompt_tokens) == (50, 0, None)
    assert found[1].times.first_token_s == 1.0
    assert bench.http.left == 1
    assert not bench.requests.times.choices


def test_what_another_instance_has_begun_is_part_of_the_prompt(about):
    begun = message(produced=((9, 8), None, ()), params={"n": 3, "min_tokens": 4})
    bench, found = run(about, [chunk(5, "stop")], begun)
    bodies = bench.http.asked
    assert [body["prompt"][50:] for body in bodies] == [[9, 8], []]
    assert [body["max_tokens"] for body in bodies] == [3, 5]
    assert [body["min_tokens"] for body in bodies] == [2, 4]
    assert [body["seed"] for body in bodies] == [7, 9]
    assert sorted(one.choices[0].index for one in found) == [0, 2]
    assert [one.finished for one in found] == [False, True]


def test_what_the_engine_has_is_counted(about):
    def before(bench):
        bench.names.apply([stored(PROMPT[:32])])
        assert bench.names.digests() == chain(about.key_of("", ""), PROMPT[:32])

    _, found = run(about, [chunk(5, "stop")], message(), before=before)
    assert found[0].cached_tokens == 32
    _, salted = run(about, [chunk(5, "stop")], message(cache_salt="salt"), before=before)
    assert salted[0].cached_tokens == 0


def test_cancelled_at_any_time(about):
    async def main(turns):
        bench = Bench(about, chunk(5), None)
        bench.requests.add(message())
        for _ in range(turns):
            await asyncio.sleep(0)
        bench.requests.cancel("1:r")
        found = await bench.outputs()
        assert [one.finished for one in found[-1:]] == [True]
        assert bench.http.left == len(bench.http.asked)
        assert not bench.requests.times.choices

    for turns in range(12):
        asyncio.run(main(turns))


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (EngineDiedError("gone"), "engine_died"),
        (RequestError("no", "prompt"), "invalid_request"),
        ({"choices": [{"text": 3}]}, "engine_error"),
        ({"choices": [[]]}, "engine_error"),
    ],
)
def test_failures(about, step, code):
    bench, found = run(about, [chunk(5), step], message())
    assert found[-1].finished
    assert found[-1].error_code == code
    assert len(bench.deaths) == (
        step.__class__ is EngineDiedError or "token ids" in found[-1].error
    )


def test_refused_at_once(about):
    with pytest.raises(ContextLengthError):
        run(about, [], message(params={"max_tokens": 51}))
    with pytest.raises(RequestError, match="phase"):
        run(about, [], message(phase="prefill"))
    with pytest.raises(RequestError, match="in use"):
        run(about, [None], message(), message())
