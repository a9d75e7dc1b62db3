"""An engine whose model's layers several processes share."""

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from inlay.core.errors import ConfigError, EngineDiedError, ModelNotFoundError, RankLostError
from inlay.core.messages import SamplingParams
from inlay.engine.client import EngineClient
from inlay.engine.config import CacheConfig, EngineConfig
from inlay.engine.engine import Engine
from inlay.engine.rank_wire import RankSetup
from inlay.engine.ranks import Ranks
from inlay.experts.config import ExpertsConfig, PlacementConfig
from tests.integration.engine.engines import request
from tests.support.pause import pause
from tests.support.tiny_models import make_tiny_model

PROMPTS = [list(range(5, 45)), [7, 99, 3, 250]]
END_S = 60.0
SIZES: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 6, "num_key_value_heads": 6},
    "qwen3_moe": {"num_attention_heads": 6, "num_key_value_heads": 1, "moe_intermediate_size": 48},
    "deepseek_v3": {"moe_intermediate_size": 48},
    "gpt_oss": {"num_attention_heads": 6, "num_key_value_heads": 1},
}


def configured(directory: Path, degree: int, **more: Any) -> EngineConfig:
    placement = PlacementConfig(tensor_parallel=degree)
    return EngineConfig(
        model=str(directory), device="cpu", threads=degree, placement=placement, **more
    )


def tiny(path: Path, architecture: str = "qwen3_moe") -> Path:
    return make_tiny_model(path, architecture, num_hidden_layers=3, **SIZES[architecture])


@contextmanager
def running(directory: Path, degree: int, **more: Any) -> Iterator[Engine]:
    """An engine; when the block ends, so have its ranks."""
    before = set(psutil.Process().children())
    engine = Engine(configured(directory, degree, **more))
    ranks = set(psutil.Process().children()) - before
    assert len(ranks) == degree - 1
    try:
        yield engine
    finally:
        engine.close()
        assert not psutil.wait_procs(ranks, timeout=END_S)[1]


def answers(engine: Engine) -> tuple[list[list[int]], list[float]]:
    """Greedy tokens, and the logarithms of probabilities of tokens of prompts and text."""
    params = SamplingParams(temperature=0, max_tokens=10, prompt_logprobs=0, logprobs=0)
    completions = engine.generate(PROMPTS, params)
    choices = [completion.choices[0] for completion in completions]
    told = [one for completion in completions for one in completion.prompt_logprobs or () if one]
    told += [one for choice in choices for one in choice.logprobs or ()]
    return [list(choice.token_ids) for choice in choices], [one.logprob for one in told]


@pytest.mark.parametrize(
    ("architecture", "degree"),
    [("qwen3_moe", 2), ("gpt_oss", 3), ("deepseek_v3", 2), ("llama", 3)],
)
def test_processes_give_the_text_of_one(tmp_path: Path, architecture: str, degree: int) -> None:
    directory = tiny(tmp_path, architecture)
    with running(directory, 1) as engine:
        tokens, logprobs = answers(engine)
    with running(directory, degree) as engine:
        assert engine.info.placement == f"each layer shared by {degree} processes"
        shared_tokens, shared_logprobs = answers(engine)
    assert shared_tokens == tokens
    assert len(logprobs) > 50
    assert shared_logprobs == pytest.approx(logprobs, abs=1e-4)


def test_deferral(tmp_path: Path) -> None:
    directory = tiny(tmp_path)
    more = {"experts": ExpertsConfig(deferral=1)}
    with running(directory, 1, **more) as engine:
        expected = answers(engine)
    with running(directory, 2, **more) as engine:
        tokens, logprobs = answers(engine)
    assert tokens == expected[0]
    assert logprobs == pytest.approx(expected[1], abs=1e-4)


def rank_pids(engine: Engine) -> list[int]:
    return [process.popen.pid for process in engine._ranks._processes]


def test_a_rank_that_is_killed_while_nothing_happens(tmp_path: Path) -> None:
    with running(tiny(tmp_path), 3) as engine:
        failed = os.eventfd(0)
        engine._ranks.on_failure = lambda: os.eventfd_write(failed, 1)
        first, second = rank_pids(engine)
        os.kill(second, signal.SIGKILL)
        os.eventfd_read(failed)
        os.close(failed)
        said = rf"rank 2 of 3 \(process {second}\) was killed by SIGKILL; its part of the model"
        with pytest.raises(RankLostError, match=said):
            engine.add(request("a", PROMPTS[0]))


def test_a_rank_that_is_killed_in_the_middle_of_steps(tmp_path: Path) -> None:
    with running(tiny(tmp_path), 3) as engine:
        engine.add(request("a", PROMPTS[0], temperature=0, max_tokens=400, ignore_eos=True))
        first, second = rank_pids(engine)
        outputs = []
        for number in itertools.count():
            if number == 5:
                os.kill(first, signal.SIGKILL)
            outputs += engine.step()
            if outputs and outputs[-1].finished:
                break
        assert f"rank 1 of 3 (process {first}) was killed by SIGKILL" in outputs[-1].error
        assert outputs[-1].error_code == "rank_lost"
        assert isinstance(engine.failure, RankLostError) and not engine.num_live
        engine.audit()


@pytest.mark.anyio
async def test_ranks_end_with_their_engine(tmp_path: Path) -> None:
    client = await EngineClient.start(configured(tiny(tmp_path), 2))
    (rank,) = psutil.Process(client.pid).children()
    os.kill(client.pid, signal.SIGKILL)
    assert not psutil.wait_procs([rank], timeout=END_S)[1]
    await client.aclose()


@pytest.mark.anyio
async def test_clients_learn_which_rank_is_gone(tmp_path: Path) -> None:
    client = await EngineClient.start(configured(tiny(tmp_path), 2))
    (rank,) = psutil.Process(client.pid).children()
    stream = client.generate(
        request("a", PROMPTS[0], temperature=0, max_tokens=400, ignore_eos=True)
    )
    pause(rank.pid)  # without it no step comes to its end
    asyncio.get_running_loop().call_later(0.2, rank.kill)
    with pytest.raises((RankLostError, EngineDiedError), match="rank 1 of 2 .* SIGKILL"):
        async for _ in stream:
            pass
    await client.aclose()


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """One more rank, of a model that is not there."""
    config = configured(tmp_path / "none", 2)

    def setup(number: int, port: int) -> RankSetup:
        return RankSetup(
            config=config,
            directory=str(tmp_path / "none"),
            device="cpu",
            weight_format="auto",
            placement=None,
            number=number,
            degree=2,
            port=port,
            parent_pid=os.getpid(),
        )

    made = Ranks(setup, 2)
    yield made
    made.close()


def test_a_rank_that_cannot_load_says_why(ranks: Ranks) -> None:
    ranks.meet("cpu")
    with pytest.raises(ModelNotFoundError, match=r"none.*\(rank 1 of 2 \(process \d+\)\)"):
        ranks.loaded()


def test_a_rank_that_is_killed_before_ranks_meet(ranks: Ranks) -> None:
    ranks._processes[0].popen.kill()
    with pytest.raises(RankLostError, match=r"rank 1 of 2 .* was killed by SIGKILL"):
        ranks.meet("cpu")


def test_what_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    directory = tiny(tmp_path)
    with pytest.raises(ConfigError, match=r"its 6 heads; possible are 1, 2, 3, 6$"):
        Engine(configured(directory, 4))
    with pytest.raises(ConfigError, match=r"cache\.host keeps whole pages"):
        configured(directory, 2, cache=CacheConfig(host="1MiB"))
    with pytest.raises(ConfigError, match="GPUs from cuda:0 to cuda:1: set device=cuda"):
        EngineConfig(device="cuda:1", placement=PlacementConfig(tensor_parallel=2))
    with pytest.raises(ConfigError, match=r"placement\.rules place layers on one each"):
        PlacementConfig(tensor_parallel=2, rules=Path("rules.yaml"))
    with pytest.raises(ConfigError, match="must be at least 1, got 0"):
        PlacementConfig(tensor_parallel=0)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("gpu_experts", [None, 3])
def test_text_of_two_gpus(tmp_path: Path, gpu_experts: int | None) -> None:
    sizes = {"num_attention_heads": 8, "head_dim": 32, "moe_intermediate_size": 64}
    directory = make_tiny_model(tmp_path, "qwen3_moe", num_hidden_layers=3, **sizes)
    texts = []
    for degree in (1, 2):
        placement = PlacementConfig(tensor_parallel=degree, gpu_experts=gpu_experts)
        engine = Engine(
            EngineConfig(
                model=str(directory), device="cuda", weight_format="float32", placement=placement
            )
        )
        texts.append(answers(engine)[0])
        engine.close()
    assert texts[0] == texts[1]
