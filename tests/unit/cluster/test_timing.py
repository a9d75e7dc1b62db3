"""What timing models learn, and from what."""

from pathlib import Path

import numpy as np
import pytest

from inlay.cluster.timing import TimingConfig, TimingModel, TransferModel, features
from inlay.core.errors import ConfigError
from inlay.core.instance_messages import StepSample
from tests.unit.cluster.clusters import SECONDS


def steps(count: int, seed: int = 0, seconds: np.ndarray = SECONDS) -> list[StepSample]:
    """Steps of all kinds with 5 % of noise."""
    rng = np.random.default_rng(seed)
    shapes = []
    for _ in range(count):
        tokens = int(rng.integers(1, 513)) if rng.random() < 0.5 else 0
        rows = int(rng.integers(0 if tokens else 1, 40))
        pairs = int(tokens * rng.integers(1, 8000))
        shapes.append(StepSample(tokens, pairs, rows, rows * int(rng.integers(1, 4000)), 0.0))
    times = features(shapes) @ seconds * rng.lognormal(0, 0.05, count)
    return [
        StepSample(s.prefill_tokens, s.prefill_pairs, s.decodes, s.decode_context, float(t))
        for s, t in zip(shapes, times, strict=True)
    ]


def errors(model: TimingModel, seconds: np.ndarray = SECONDS) -> np.ndarray:
    """Relative errors on other steps."""
    others = steps(200, seed=99, seconds=seconds)
    return np.array([model.step_s(s) / float((features([s]) @ seconds)[0]) - 1 for s in others])


def test_it_learns_from_a_prior_that_is_wrong_by_any_factor() -> None:
    for factor in (1e-3, 1.0, 1e3):
        prior = SECONDS * factor * np.array([3, 0.3, 2, 0.5, 5, 0.2])
        model = TimingModel(prior)
        for start in range(0, 300, 10):
            model.observe(steps(300)[start : start + 10])
        assert np.abs(errors(model)).mean() < 0.05, factor


def test_the_first_steps_set_the_scale() -> None:
    model = TimingModel(SECONDS * 50)
    model.observe(steps(4))
    assert np.abs(errors(model)).mean() < 0.3


def test_it_follows_a_change() -> None:
    model = TimingModel(SECONDS, TimingConfig(memory_steps=200))
    slow = SECONDS * 1.5
    for start in range(0, 1000, 20):
        model.observe(steps(1000, seconds=slow)[start : start + 20])
    assert np.abs(errors(model, slow)).mean() < 0.05


def test_outliers_change_little() -> None:
    model = TimingModel(SECONDS)
    rng = np.random.default_rng(1)
    for sample in steps(400):
        slow = rng.random() < 0.03
        model.observe([_times(sample, 20.0 if slow else 1.0)])
    assert np.abs(errors(model)).mean() < 0.1


def _times(sample: StepSample, factor: float) -> StepSample:
    s = sample
    return StepSample(
        s.prefill_tokens, s.prefill_pairs, s.decodes, s.decode_context, s.seconds * factor
    )


def test_no_coefficient_is_negative() -> None:
    rng = np.random.default_rng(2)
    model = TimingModel(SECONDS)
    for _ in range(50):
        tokens, rows = int(rng.integers(0, 500)), int(rng.integers(1, 30))
        model.observe([StepSample(tokens, tokens * 9, rows, rows * 100, rng.uniform(0.001, 0.1))])
        assert (model.coefficients >= 0).all()


def test_uncertainty_is_that_of_the_steps() -> None:
    model = TimingModel(SECONDS)
    assert model.relative_std == pytest.approx(0.5)
    for start in range(0, 3000, 60):
        model.observe(steps(3000)[start : start + 60])
    assert 0.03 < model.relative_std < 0.12


def test_steps_without_time_are_left_out() -> None:
    model = TimingModel(SECONDS)
    model.observe([StepSample(0, 0, 1, 10, 0.0), StepSample(0, 0, 1, 10, float("nan"))])
    assert model.num_steps == 0


def test_save_and_load(tmp_path: Path) -> None:
    model = TimingModel(SECONDS * 3)
    model.observe(steps(200))
    model.save(tmp_path / "timing.json")
    loaded = TimingModel.load(tmp_path / "timing.json")
    assert loaded.coefficients == pytest.approx(model.coefficients, rel=1e-6, abs=1e-12)
    assert loaded.relative_std == pytest.approx(model.relative_std)
    loaded.observe(steps(50, seed=3))
    assert np.abs(errors(loaded)).mean() < 0.05


@pytest.mark.parametrize("text", ["", "{}", '{"format": "inlay timing 0"}', "[1]"])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "timing.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"timing\.json.*inlay calibrate"):
        TimingModel.load(path)


def test_prefill_and_decode() -> None:
    model = TimingModel(SECONDS)
    assert model.decode_s(10, 1000) == pytest.approx(0.01 + 10 * 2e-4 + 1000 * 1e-7)
    assert model.prefill_s(1000, 0, chunk=500) == pytest.approx(0.02 + 0.12 + 2e-9 * 500_500)
    assert model.prefill_s(100, 900) < model.prefill_s(1000, 0)


def test_transfers_teach_bandwidth() -> None:
    model = TransferModel(latency_s=0.001, bandwidth=1e8)
    for _ in range(60):
        model.observe(1e9, 0.5e9, 0.001 + 1.5e9 / 5e9)
    assert model.bandwidth == pytest.approx(5e9, rel=0.01)
    assert model.seconds(1e9, 1e9) == pytest.approx(0.401, rel=0.01)
    model.observe(10, 0, 0.0005)
    assert model.bandwidth == pytest.approx(5e9, rel=0.01)
