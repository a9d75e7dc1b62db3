"""A prefill and a decode instance, each a process; the test is the dispatcher between them."""

import random

import pytest

from inlay.core.instance_messages import InstanceInfo, KvLost, LoadReport
from inlay.core.messages import EngineStats, StatsRequest
from tests.integration.engine.engines import request
from tests.integration.engine.pairs import Between
from tests.support.instances import RunningInstance, tokens

PARAMS = {"max_tokens": 12, "temperature": 0.7, "seed": 11, "ignore_eos": True}


@pytest.fixture
def pair(tiny_directory):
    config = {
        "model": str(tiny_directory),
        "device": "cpu",
        "seed": 0,
        "cache": {"pages": 400},
        "exchange": "127.0.0.1:0",
    }
    instances = [RunningInstance(config, role, role=role) for role in ("prefill", "decode")]
    yield [instance.wait_ready() for instance in instances]
    for instance in instances:
        instance.stop()


def _prompts(count, seed):
    rng = random.Random(seed)
    stem = [rng.randrange(200) for _ in range(128)]
    return [
        (stem if n % 2 else []) + [rng.randrange(200) for _ in range(rng.randrange(2, 200))]
        for n in range(count)
    ]


def _alone(tiny, prompts):
    texts = []
    with tiny.engine() as engine:
        for n, prompt in enumerate(prompts):
            engine.add(request(n, prompt, **PARAMS))
        outputs = []
        while engine.num_live:
            outputs += engine.step()
    for n in range(len(prompts)):
        texts.append(tokens([o for o in outputs if o.request_id == str(n)]))
    return texts


def test_the_text_of_one_instance(pair, tiny):
    prompts = _prompts(40, seed=2)
    with Between(pair) as between:
        infos = [peer.subscribe().next(InstanceInfo) for peer in (between.prefill, between.decode)]
        assert [info.role for info in infos] == ["prefill", "decode"]
        assert infos[0].namespace == infos[1].namespace
        assert infos[0].key_check == infos[1].key_check
        assert all(info.transfer.startswith("127.0.0.1:") for info in infos)
        for n, prompt in enumerate(prompts):
            between.send(request(n, prompt, **PARAMS))
        between.until(lambda: all(between.decode.finished(n) for n in range(40)))
        got = [tokens(between.decode.outputs[str(n)]) for n in range(40)]
        computed = _prefilled(between.prefill)
        assert computed > 0.8 * (sum(map(len, prompts)) - 20 * 128), "who computed the prompts?"
        assert _prefilled(between.decode) < 0.2 * computed
    assert got == _alone(tiny, prompts)


def test_a_prefill_instance_that_is_killed(pair, tiny):
    prompts = _prompts(20, seed=3)
    with Between(pair) as between:
        for n, prompt in enumerate(prompts):
            between.send(request(n, prompt, **PARAMS))
        between.until(lambda: len(between.decode.outputs) >= 3)
        pair[0].process.kill()
        for n in range(20):
            between.decode.send(KvLost(str(n), "the prefill instance was killed"))
        between.until(lambda: all(between.decode.finished(n) for n in range(20)))
        got = [tokens(between.decode.outputs[str(n)]) for n in range(20)]
    assert got == _alone(tiny, prompts)


def _prefilled(peer):
    """Prompt tokens that an instance computed since this peer subscribed."""
    peer.send(StatsRequest())
    peer.next(EngineStats)
    peer.next(LoadReport)
    reports = [message for message in peer.heard if isinstance(message, LoadReport)]
    return sum(sample.prefill_tokens for report in reports for sample in report.samples)
