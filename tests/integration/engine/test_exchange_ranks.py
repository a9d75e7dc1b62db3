"""Prompts go between instances whose models ranks share; texts are those of one process."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from inlay.cache import CacheConfig
from inlay.core.instance_messages import InstanceInfo, KvLost
from inlay.core.messages import GenerateRequest
from inlay.engine.config import EngineConfig, SchedulerConfig
from inlay.engine.engine import Engine
from inlay.experts.config import PlacementConfig
from tests.integration.engine.engines import drain, request
from tests.integration.engine.pairs import Between, Pair, prompts, settle, token_ids
from tests.support.instances import RunningInstance
from tests.support.tiny_models import make_tiny_model

SIZES = [15, 17, 49, 200, 301]
END_S = 60.0


def configured(directory: Path, degree: int) -> EngineConfig:
    return EngineConfig(
        model=str(directory),
        device="cpu",
        threads=degree,
        seed=0,
        exchange="127.0.0.1:0",
        placement=PlacementConfig(tensor_parallel=degree),
        cache=CacheConfig(pages=100),
        scheduler=SchedulerConfig(prefill_chunk=64, max_batch_tokens=200),
    )


def asked(seed: int = 0) -> list[GenerateRequest]:
    return [
        request(number, ids, max_tokens=8, ignore_eos=True, temperature=0.0)
        for number, ids in enumerate(prompts(SIZES, seed))
    ]


def texts(outputs: dict[str, list[Any]]) -> dict[str, Any]:
    return {key: token_ids(value) for key, value in outputs.items()}


def alone(engine: Engine, messages: list[GenerateRequest]) -> dict[str, Any]:
    for message in messages:
        engine.add(message)
    expected = texts(drain(engine))
    engine.reset_prefix_cache()
    return expected


@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v3"])
def test_texts_are_those_of_one_process(tmp_path: Path, architecture: str) -> None:
    """Two heads of keys and values, and latents, from one process to two, and back."""
    directory = make_tiny_model(tmp_path / "tiny", architecture)
    with ExitStack() as stack:
        engines = {}
        for degree in (1, 2):
            engines[degree] = Engine(configured(directory, degree))
            stack.callback(engines[degree].close)
        assert len({engine.namespace.key(b"") for engine in engines.values()}) == 1
        messages = asked()
        expected = alone(engines[1], messages)
        for sender, receiver in ((1, 2), (2, 1)):
            both = Pair(engines[sender], engines[receiver])
            for message in messages:
                both.add(message)
            assert texts(both.drain()) == expected
            ended = [outputs[-1].error for outputs in both.sent.values()]
            assert not both.given_up and not any(ended), ended
            wanted = [target for target in both.targets.values() if target.num_tokens]
            assert len(wanted) == 3 and {len(one.ranks) for one in wanted} == {receiver}
            clear(both)
            for steps in (1, 4):
                cancel_after(steps, both, messages[-1])


def cancel_after(steps: int, both: Pair, message: GenerateRequest) -> None:
    """Nothing of a prompt is kept at either end, however far it was."""
    both.add(message)
    for _ in range(steps):
        both.step()
    both.decode.cancel(message.request_id)
    both.prefill.cancel(message.request_id)
    both.drain()
    clear(both)


def clear(both: Pair) -> None:
    for engine in (both.prefill, both.decode):
        settle(engine)
        engine.audit()
        engine.reset_prefix_cache()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[RunningInstance]]:
    directory = make_tiny_model(tmp_path / "tiny", "qwen3_moe")
    config = dataclasses.asdict(configured(directory, 2))
    instances = [RunningInstance(config, role, role=role) for role in ("prefill", "decode")]
    yield [instance.wait_ready() for instance in instances]
    for instance in instances:
        instance.stop()


def test_a_sender_that_is_killed_in_the_middle(pair: list[RunningInstance], tmp_path: Path) -> None:
    """All prompts of the first requests come from it, then it is lost with its ranks."""
    ranks = psutil.Process(pair[0].process.pid).children()
    first, second = asked(), asked(seed=1)
    for number, message in enumerate(second, len(first)):
        second[number - len(first)] = msgspec.structs.replace(message, request_id=str(number))
    with Between(pair) as between:
        infos = [peer.subscribe().next(InstanceInfo) for peer in (between.prefill, between.decode)]
        assert infos[0].namespace == infos[1].namespace
        for message in first:
            between.send(message)
        between.until(lambda: all(between.decode.finished(n) for n in range(len(first))))
        assert not any(isinstance(one, KvLost) for one in between.decode.heard)
        for message in second:
            between.send(message)
        pair[0].process.kill()
        for message in second:
            between.decode.send(KvLost(message.request_id, "the prefill instance was killed"))
        everything = [*first, *second]
        between.until(lambda: all(between.decode.finished(n) for n in range(len(everything))))
        got = texts(between.decode.outputs)
    assert not psutil.wait_procs(ranks, timeout=END_S)[1]
    engine = Engine(configured(tmp_path / "tiny", 1))
    assert got == alone(engine, everything)
    engine.close()
