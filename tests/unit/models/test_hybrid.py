"""A model over the host and devices: the same answers wherever its parts are, and deferral."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from inlay.core.errors import ArgumentError, ConfigError, ResourceError, UnsupportedModelError
from inlay.core.model_config import read_shape
from inlay.core.placement import LayerPlacement, Placement, PrefillAt
from inlay.models.fake_device import FakeDevice, FakeOps
from inlay.models.host_share import ShareConfig
from inlay.models.model import Model, load_model
from inlay.models.native_ops import NativeOps
from inlay.models.ops import Ops
from inlay.models.torch_ops import TorchOps
from tests.support.model_driver import ModelDriver
from tests.support.tiny_models import make_tiny_model
from tests.unit.models.reference import relative_error

TOKENS = [7, 99, 3, 250, 17, 42, 8, 77, 310, 5]
ARCHITECTURES = ("qwen3_moe", "deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss", "mixtral")
CPU = LayerPlacement()


def on(device: str, resident: int = 0) -> LayerPlacement:
    return LayerPlacement(device=device, resident=resident)


def placed(
    directory: Path, layers: list[LayerPlacement], ops: Ops | None = None, **sharing: int
) -> Model:
    placement = Placement(layers=tuple(layers))
    backends: dict[str, Ops] = {}
    for device in placement.devices:
        made = NativeOps() if device == "cpu" else ops or FakeOps(device, FakeDevice())
        backends[device] = made
    return load_model(
        directory,
        weight_format="float32",
        placement=placement,
        backends=backends,
        sharing=ShareConfig(**sharing),
    )


def tiny(path: Path, architecture: str = "qwen3_moe", layers: int = 3, **changes: object) -> Path:
    return make_tiny_model(
        path, architecture, tokenizer="none", num_hidden_layers=layers, **changes
    )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("resident", [0, 3, 6])
def test_answers_do_not_depend_on_where_experts_are(
    tmp_path: Path, architecture: str, resident: int
) -> None:
    directory = tiny(tmp_path, architecture)
    expected = ModelDriver(load_model(directory, weight_format="float32"))
    driver = ModelDriver(placed(directory, [on("fake:0", resident)] * 3))
    for chunks in ((), (4, 3)):
        actual, wanted = driver.prefill(TOKENS, chunks), expected.prefill(TOKENS, chunks)
        assert relative_error(actual, wanted) < 1e-4
    assert driver.greedy(TOKENS, 8) == expected.greedy(TOKENS, 8)


@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v3"])
@pytest.mark.parametrize(
    "layers",
    [
        [on("fake:0", 2), on("fake:0", 2), CPU],
        [CPU, on("fake:0", 2), CPU],
        [on("fake:0", 1), on("fake:1", 8), on("fake:1", 0)],
    ],
    ids=["front", "middle", "two"],
)
def test_layers_may_be_on_several_devices(
    tmp_path: Path, architecture: str, layers: list[LayerPlacement]
) -> None:
    directory = tiny(tmp_path, architecture)
    expected = ModelDriver(load_model(directory, weight_format="float32"))
    driver = ModelDriver(placed(directory, layers))
    assert len(driver.pool.parts) == len(driver.model.placement.stages) > 1
    assert sum(part.data.nbytes for part in driver.pool.parts) == driver.pool.nbytes
    assert relative_error(driver.prefill(TOKENS), expected.prefill(TOKENS)) < 1e-4
    assert driver.greedy(TOKENS, 8) == expected.greedy(TOKENS, 8)
    with pytest.raises(ConfigError, match=r"cache\.host, cache\.disk and cache\.store need all"):
        _ = driver.pool.whole


class Deferring(TorchOps):
    """The definition of deferral, slowly: every expert by itself, one token after the other."""

    def __init__(self, mixtures: int, deferred: int, resident: int) -> None:
        super().__init__(torch.device("cpu"))
        self._mixtures, self._deferred, self._resident = mixtures, deferred, resident
        self.decode_T: np.ndarray | None = None
        self.later = 0

    def begin(self, batch, *more):
        self.decode_T, self._carry_TM = batch.decode_T, None
        self._layers: Iterator[int] = itertools.count()
        return super().begin(batch, *more)

    def moe(self, x_TM, experts, ids_TK, weights_TK, out_TM, *, activation, shared, adapters=()):
        is_last = next(self._layers) == self._mixtures - 1
        if shared is not None:
            out_TM += shared.one(0, x_TM, activation)
        if self._carry_TM is not None:
            out_TM += self._carry_TM
        self._carry_TM = torch.zeros_like(out_TM)
        for t, (ids, weights) in enumerate(zip(ids_TK.tolist(), weights_TK.tolist(), strict=True)):
            host = [(-w, e) for e, w in zip(ids, weights, strict=True) if e >= self._resident]
            most = min(len(host), max(0, len(ids) - 2))
            count = 0 if is_last or not self.decode_T[t] else min(self._deferred, most)
            deferred = {e for _, e in sorted(host)[len(host) - count :]}
            self.later += len(deferred)
            for e, w in zip(ids, weights, strict=True):
                to = self._carry_TM if e in deferred else out_TM
                to[t] += w * experts.one(e, x_TM[t : t + 1], activation)[0]


@pytest.mark.parametrize("resident", [0, 2])
@pytest.mark.parametrize("deferred", [1, 2, 5])
@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v2"])
def test_deferral_is_what_it_is_defined_to_be(
    tmp_path: Path, architecture: str, deferred: int, resident: int
) -> None:
    """Over dense layers, shared experts, prompts beside decodes, and residents."""
    change = {"mlp_only_layers": [2]} if architecture == "qwen3_moe" else {}
    directory = tiny(tmp_path, architecture, layers=5, num_experts_per_tok=5, **change)
    sparse = len(read_shape(directory).sparse_layers)
    slow = Deferring(sparse, deferred, resident)
    reference = ModelDriver(placed(directory, [on("torch:0", 8)] * 5, slow))
    driver = ModelDriver(placed(directory, [on("fake:0", resident)] * 5, deferred=deferred))
    running = [(one.add(TOKENS[:4]), one.add(TOKENS)) for one in (reference, driver)]
    for counts in ((3, 0), (1, 5), (0, 4), (0, 1)):  # decodes alone, beside prompts, and none
        logits = [
            one.step([(s, n) for s, n in zip(pair, counts, strict=True) if n], all_rows=True)
            for one, pair in zip((reference, driver), running, strict=True)
        ]
        for wanted, actual in zip(*logits, strict=True):
            assert relative_error(actual, wanted) < 1e-5
    assert slow.later > 0
    exact = ModelDriver(placed(directory, [on("fake:0", resident)] * 5))
    assert driver.greedy(TOKENS, 4)[0] == exact.greedy(TOKENS, 4)[0]  # of the prompt alone
    changed = [one.add(TOKENS[:4]) for one in (driver, exact)]
    for one, sequence in zip((driver, exact), changed, strict=True):
        one.step([(sequence, 3)])
    ours, theirs = (
        one.step([(sequence, 1)])[0] for one, sequence in zip((driver, exact), changed, strict=True)
    )
    assert relative_error(ours, theirs) > 1e-4


@pytest.mark.parametrize("architecture", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("resident", [0, 3])
def test_prompts_may_have_their_experts_brought(
    tmp_path: Path, architecture: str, resident: int
) -> None:
    """In groups that are smaller than a layer; beside decodes, whose experts stay the host's."""
    directory = tiny(tmp_path, architecture)
    exact = ModelDriver(load_model(directory, weight_format="float32"))
    driver = ModelDriver(
        placed(directory, [on("fake:0", resident)] * 3, stream=4, stream_bytes=150_000)
    )
    pairs = [[one.add(TOKENS[:5]), one.add(TOKENS)] for one in (exact, driver)]
    for counts in ((4, 0), (1, 6), (0, 3), (0, 1)):  # brought, brought beside a decode, and not
        wanted, actual = (
            one.step([(s, n) for s, n in zip(pair, counts, strict=True) if n], all_rows=True)
            for one, pair in zip((exact, driver), pairs, strict=True)
        )
        for ours, theirs in zip(actual, wanted, strict=True):
            assert relative_error(ours, theirs) < 1e-4
    share = driver.model.host_share
    assert share is not None
    (stream,) = share._streams.values()
    assert 1 <= stream._slots < 8  # a layer comes in several groups
    assert share.activations["host"] > 0  # of the decodes alone


def test_memory_is_given_back_bit_by_bit(tmp_path: Path) -> None:
    """First what experts come to for a step, then those of the last layers; answers stay right."""
    directory = tiny(tmp_path)
    exact = ModelDriver(load_model(directory, weight_format="float32")).prefill(TOKENS)
    ops = FakeOps("fake:0", FakeDevice())
    driver = ModelDriver(placed(directory, [on("fake:0", 3)] * 3, ops, stream=4))
    assert relative_error(driver.prefill(TOKENS), exact) < 1e-4
    share, free = driver.model.host_share, [ops.free_bytes()]
    assert share is not None
    while share.relieve():
        free.append(ops.free_bytes())
        assert relative_error(driver.prefill(TOKENS), exact) < 1e-4
    assert len(free) == 5 and free == sorted(set(free))
    assert not share.residency.resident_LE.any()


@pytest.mark.parametrize("prefill", ["host", "device"])
def test_rules_say_where_prompts_are_computed(tmp_path: Path, prefill: PrefillAt) -> None:
    directory = tiny(tmp_path)
    exact = ModelDriver(load_model(directory, weight_format="float32"))
    first = LayerPlacement(device="fake:0", prefill=prefill)
    driver = ModelDriver(placed(directory, [first, on("fake:0", 2), first], stream=8))
    for count in (10, 3):
        actual, wanted = driver.prefill(TOKENS[:count]), exact.prefill(TOKENS[:count])
        assert relative_error(actual, wanted) < 1e-4
    assert driver.greedy(TOKENS, 6) == exact.greedy(TOKENS, 6)


def test_deferral_needs_no_device(tmp_path: Path) -> None:
    directory = tiny(tmp_path, layers=4, num_experts_per_tok=5)
    alone = ModelDriver(
        load_model(directory, weight_format="float32", sharing=ShareConfig(deferred=2))
    )
    driver = ModelDriver(placed(directory, [on("fake:0")] * 4, deferred=2))
    assert alone.greedy(TOKENS, 12) == driver.greedy(TOKENS, 12)


def test_impossible_placements_are_refused(tmp_path: Path) -> None:
    directory = tiny(tmp_path)
    with pytest.raises(ConfigError, match="is of 2 layers, the model has 3"):
        placed(directory, [CPU] * 2)
    with pytest.raises(ConfigError, match="9 resident experts: a layer of the model has 8"):
        placed(directory, [on("fake:0", 9)] * 3)
    with pytest.raises(UnsupportedModelError, match="'tpu:0' is not supported"):
        load_model(directory, placement=Placement.on("tpu:0", 3))
    with pytest.raises(ResourceError, match="finds no CUDA device"):
        load_model(directory, placement=Placement.on("cuda:3", 3))
    small = FakeOps("fake:0", FakeDevice(memory_bytes=10_000))
    with pytest.raises(ResourceError, match=r"on fake:0 beside .*, and 9\.8 KiB are free"):
        placed(directory, [on("fake:0", 2)] * 3, small)


def test_a_failure_of_the_device_ends_its_step_alone(tmp_path: Path) -> None:
    """The host does not wait for a device that stopped in the middle; the next step is right."""

    class Failing(FakeOps):
        fails = False

        def rope_and_store(self, qkv_TN, spec, step):
            if self.fails and spec.layer == 1:
                self._do(lambda: torch.ones(2) @ torch.ones(3))
            super().rope_and_store(qkv_TN, spec, step)

    directory = tiny(tmp_path)
    ops = Failing("fake:0", FakeDevice())
    driver = ModelDriver(placed(directory, [on("fake:0", 2)] * 3, ops))
    expected = driver.prefill(TOKENS)
    ops.fails = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="inconsistent tensor size"):
            driver.prefill(TOKENS)
    ops.fails = False
    assert torch.equal(driver.prefill(TOKENS), expected)


def test_a_failure_of_the_host_ends_its_step_alone(tmp_path: Path) -> None:
    class Wrong(FakeOps):
        wrong = False

        def route(self, logits_TE, router, correction_E, out_ids_TK, out_weights_TK):
            super().route(logits_TE, router, correction_E, out_ids_TK, out_weights_TK)
            if self.wrong:
                self._do(lambda: out_weights_TK.fill_(torch.nan))

    directory = tiny(tmp_path)
    ops = Wrong("fake:0", FakeDevice())
    driver = ModelDriver(placed(directory, [on("fake:0", 2)] * 3, ops))
    expected = driver.prefill(TOKENS)
    ops.wrong = True
    with pytest.raises(ArgumentError, match="finite"):
        driver.prefill(TOKENS)
    ops.wrong = False
    assert torch.equal(driver.prefill(TOKENS), expected)
