"""Engines whose model is on the host and on a device: the same text, whatever happens to it."""

import logging

import pytest
import torch

from inlay.cache import CacheConfig
from inlay.core.placement import LayerPlacement, Placement
from inlay.engine.config import EngineConfig, SchedulerConfig
from inlay.engine.deferral import most_within
from inlay.engine.engine import Engine
from inlay.engine.loading import prepare
from inlay.experts.config import ExpertsConfig
from inlay.models import load_model
from inlay.models.fake_device import FakeDevice, FakeOps
from inlay.models.host_share import ShareConfig
from inlay.models.native_ops import NativeOps
from inlay.models.text import Text
from tests.integration.engine.engines import DEMO, drain, request
from tests.support.tiny_models import make_tiny_model

WORDS = ("lantern", "harbour", "copper", "to whisper", "glacier", "orchard")
LAYERS, EXPERTS = 5, 16


@pytest.fixture(scope="module")
def text():
    return Text.load(DEMO)


@pytest.fixture(scope="module")
def prompts(text):
    return [text.encode_chat([{"role": "user", "content": f"Define {w}."}]) for w in WORDS]


@pytest.fixture
def make(text):
    """An engine over the demo model, by where its layers are."""
    engines = []

    def make(layers=None, ops=None, *, directory=DEMO, scheduler=None, moves="0", **experts):
        deferral = experts.get("deferral", 0)
        config = EngineConfig(
            model=str(directory),
            device="cpu",
            seed=0,
            experts=ExpertsConfig(moves=moves, **experts),
            cache=CacheConfig(pages=200),
            scheduler=SchedulerConfig(**(scheduler or {})),
        )
        placement = Placement(layers=tuple(layers)) if layers else None
        names = placement.devices if placement else ()
        backends = {
            name: NativeOps() if name == "cpu" else ops or FakeOps(name, FakeDevice())
            for name in names
        }
        model = load_model(
            directory,
            weight_format="float32",
            placement=placement,
            backends=backends or None,
            sharing=ShareConfig(
                deferred=0 if deferral == "auto" else deferral,
                moves_per_s=config.experts.moves_per_s,
            ),
        )
        own = text if directory == DEMO else Text.load(directory)
        engine = Engine(config, loaded=prepare(config, "test", model, own))
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.audit()
        engine.close()


def on(device, resident=0):
    return LayerPlacement(device=device, resident=resident)


def texts(engine, prompts, **params):
    """Of all prompts at once, greedy."""
    for number, prompt in enumerate(prompts):
        engine.add(request(number, prompt, temperature=0, max_tokens=24, **params))
    outputs = drain(engine)
    assert all(outputs[str(n)][-1].error is None for n in range(len(prompts)))
    return [
        "".join(d.text for o in outputs[str(n)] for d in o.choices) for n in range(len(prompts))
    ]


@pytest.fixture
def expected(make, prompts):
    return texts(make(), prompts)


@pytest.mark.parametrize(
    "layers",
    [
        [on("fake:0")] * LAYERS,
        [on("fake:0", 4)] * LAYERS,
        [on("fake:0", 8)] * LAYERS,
        [on("fake:0", EXPERTS)] * LAYERS,
        [on("fake:0", 4), on("fake:0", 0), on("fake:1", 12), on("fake:1", 1), on("cpu")],
    ],
    ids=["none", "quarter", "half", "all", "spread"],
)
def test_text_does_not_depend_on_the_placement(make, prompts, expected, layers):
    engine = make(layers)
    assert texts(engine, prompts) == expected
    stats, shares = engine.stats(), any(one.resident < EXPERTS for one in layers)
    assert bool(stats.expert_activations) == shares
    if shares:
        assert sum(stats.expert_activations.values()) > 0
        assert (stats.expert_activations["device"] > 0) == any(one.resident for one in layers)
    assert engine.info.placement.startswith("layers 0 to ") == (shares or len(set(layers)) > 1)


def test_experts_move_while_tokens_are_made(make, prompts, expected):
    """With room for a quarter of them the device comes to compute more than a quarter."""
    engine = make([on("fake:0", 4)] * LAYERS, moves="1GiB")
    before = 0.0
    for _ in range(6):
        assert texts(engine, prompts) == expected
        counts = engine.stats().expert_activations
        before = before or counts["device"] / sum(counts.values())
    stats = engine.stats()
    assert stats.experts_moved > 0
    share = stats.expert_activations["device"] / sum(stats.expert_activations.values())
    assert share > max(0.25, before)


def test_a_device_that_runs_out_of_memory_gives_its_experts_back(make, prompts, expected, caplog):
    ops = FakeOps("fake:0", FakeDevice())
    engine = make([on("fake:0", 8)] * LAYERS, ops)
    assert texts(engine, prompts[:2]) == expected[:2]
    # A longer step needs larger arrays, for which there is no room any more.
    ops.like = FakeDevice(memory_bytes=ops.like.memory_bytes - ops.free_bytes() + 1000)
    with caplog.at_level(logging.WARNING):
        assert texts(engine, prompts) == expected
    assert "ran out of memory: the experts of 1 of 5 layers leave it" in caplog.text
    assert texts(engine, prompts) == expected
    host = engine.stats().expert_activations["host"]
    assert host > 0


def test_a_driver_error_ends_its_request_and_says_why(make, prompts, expected):
    class Failing(FakeOps):
        at = -1

        def attention(self, q_THD, spec, step, out_THD):
            lengths = step.batch.context_lens_B.tolist()
            if self.at in lengths and spec.layer == 2:
                self._do(fail)
            super().attention(q_THD, spec, step, out_THD)

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    ops = Failing("fake:0", FakeDevice())
    engine = make([on("fake:0", 4)] * LAYERS, ops)
    ops.at = max(len(prompt) for prompt in prompts) + 3
    for number, prompt in enumerate(prompts):
        engine.add(request(number, prompt, temperature=0, max_tokens=24))
    outputs = drain(engine)
    failed = [n for n in range(len(prompts)) if outputs[str(n)][-1].error is not None]
    assert failed and all("illegal memory access" in outputs[str(n)][-1].error for n in failed)
    ops.at = -1
    assert texts(engine, prompts) == expected


def test_deferral_is_chosen_by_what_it_spares_and_what_it_changes(tmp_path, make):
    """A device that takes about as long as the host is worth some, unless answers change."""
    directory = make_tiny_model(
        tmp_path,
        num_hidden_layers=LAYERS,
        hidden_size=512,
        moe_intermediate_size=1024,
        num_experts_per_tok=6,
    )
    like = FakeDevice(latency_s=200e-6)

    def chosen(max_divergence):
        engine = make(
            [on("fake:0")] * LAYERS,
            FakeOps("fake:0", like),
            directory=directory,
            deferral="auto",
            max_divergence=max_divergence,
        )
        return engine.info.deferred

    assert 1 <= chosen(1e9) <= 4
    assert chosen(0) == 0


def test_the_guard_looks_at_answers_that_the_model_gives(text):
    """It asks as users do: where experts weigh little in answers, they may be deferred."""
    model = load_model(
        DEMO,
        weight_format="float32",
        placement=Placement(layers=(on("fake:0"),) * LAYERS),
        backends={"fake:0": FakeOps("fake:0", FakeDevice())},
    )
    pool = model.new_kv_pool(model.kv_format(), 50)
    allowed = ExpertsConfig().max_divergence
    number, changed = most_within(model, pool, text, 4, allowed)
    assert 2 <= number <= 3 and 0 < changed <= allowed
    fewer, less = most_within(model, pool, text, 4, changed / 2)
    assert fewer < number and less <= changed / 2
    assert model.host_share.deferred == 0


def test_names_of_blocks_tell_what_was_deferred(make):
    exact, changed = make(), make(deferral=2)
    assert changed.info.deferred == 2 and exact.info.deferred == 0
    assert not changed.info.placement  # all of it is on the CPU
    named = [engine.cache.names("") for engine in (exact, changed)]
    for names in named:
        names.extend(range(16))
    assert named[0].digests != named[1].digests


def test_nothing_is_deferred_in_prompts(make, prompts):
    """The first token of an answer is that of no deferral."""
    first = [texts(make(deferral=n), prompts, logprobs=0) for n in (0, 4)]
    assert [one.split()[0] for one in first[0]] == [one.split()[0] for one in first[1]]


def test_torch_says_out_of_memory_as_the_engine_expects():
    assert issubclass(torch.cuda.OutOfMemoryError, torch.OutOfMemoryError)
