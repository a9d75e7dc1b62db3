"""Step times of what was measured."""

from pathlib import Path

import numpy as np
import pytest

from inlay.cluster.timing import TimingModel
from inlay.core.errors import ArgumentError, ConfigError
from inlay.core.hardware import machine_named
from inlay.core.instance_messages import StepSample
from inlay.core.roofline import Step
from inlay.sim.design import Costs
from inlay.sim.measured_time import fit_table, read_calibration, read_table
from inlay.sim.roofline_time import step_time
from tests.unit.sim.designs import design_of, step_of

PROMPTS = [(n, c) for n in (16, 64, 256, 1024, 4096, 16384) for c in (0, 1000, 30_000)]
DECODES = [(requests, c) for requests in (1, 8, 64, 256) for c in (0, 1000, 30_000)]


def table_of(design):
    """Steps that a design takes, and how long."""
    model = step_time(design)
    steps = [Step(new_tokens=n, cached_tokens=c) for n, c in PROMPTS]
    steps += [Step(new_tokens=1, cached_tokens=c, requests=r) for r, c in DECODES]
    rows = [step_of(design.shape, [one]) for one in PROMPTS]
    rows += [step_of(design.shape, contexts=[c + 1] * r) for r, c in DECODES]
    return steps, model.seconds(np.concatenate(rows))


def test_a_table_of_a_roofline_is_followed():
    design = design_of("llama-3.1-8b", machine=machine_named("xeon-spr+h800"), costs=Costs())
    steps, seconds_S = table_of(design)
    fit = fit_table(steps, seconds_S)
    assert fit.worst < 0.12 and fit.relative_std < 0.05
    between = [(3000, 7000), (700, 12_000)]
    rows = np.concatenate(
        [step_of(design.shape, [one]) for one in between]
        + [step_of(design.shape, contexts=[5000] * 30)]
    )
    found, true = fit.step_time.seconds(rows), step_time(design).seconds(rows)
    assert found == pytest.approx(true, rel=0.12)


def test_one_line_cannot_follow_it():
    """So the forms are worth having: what reads long and computes later has a corner."""
    steps = [Step(new_tokens=n) for n in range(16, 1024, 16)]
    steps += [Step(new_tokens=1, cached_tokens=c) for c in (0, 100, 200)]
    seconds = [max(0.01, 1e-4 * step.new_tokens) for step in steps]
    fit = fit_table(steps, seconds)
    assert fit.worst < 0.02
    assert len(fit.step_time.parts[0]) == 2


def test_decodes_of_single_requests_say_nothing_of_more():
    steps = [Step(new_tokens=n) for n in (10, 100, 1000)]
    steps += [Step(new_tokens=1, cached_tokens=c) for c in (0, 1000, 2000)]
    fit = fit_table(steps, [0.1, 1, 10, 0.02, 0.03, 0.04])
    shape = design_of("llama-3.1-8b").shape
    two = fit.step_time.seconds(step_of(shape, contexts=[1001, 1001]))
    assert two == pytest.approx(0.04, rel=1e-3)


def test_tables_are_read(tmp_path: Path):
    file = tmp_path / "table.csv"
    lines = ["new_tokens,cached_tokens,seconds", "100,0,1", "200,0,2", "400,0,4"]
    lines += ["1,0,0.1", "1,10,0.1", "1,20,0.1"]
    file.write_text("\n".join(lines))
    found = read_table(file).step_time.seconds(step_of(design_of("qwen3-8b").shape, [(300, 0)]))
    assert found == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2", "first line must name new_tokens"),
        ("new_tokens,cached_tokens,seconds\n5,0,1\n0,0,1", "line 3: a step needs tokens"),
        ("new_tokens,cached_tokens,seconds\n5,x,1", "line 2: invalid literal"),
        ("new_tokens,cached_tokens,seconds\n5,0", "line 2"),
        ("new_tokens,cached_tokens,seconds\n5,0,0", "a time above 0"),
        ("new_tokens,cached_tokens,seconds\n5,0,1", "at least 3 steps of prompts, got 1"),
    ],
)
def test_tables_that_say_nothing_sensible(text, message, tmp_path: Path):
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_table(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_table(tmp_path / "none.csv")


def test_a_table_without_decodes():
    with pytest.raises(ArgumentError, match="3 steps of decodes, got 0"):
        fit_table([Step(new_tokens=n) for n in (2, 3, 4)], [1, 2, 3])


def test_a_calibration_is_read(tmp_path: Path):
    model = TimingModel(np.array([8e-3, 4e-5, 2e-9, 6e-3, 2e-5, 1e-8]))
    model.observe([StepSample(512, 131_328, 0, 0, 0.03), StepSample(0, 0, 4, 4000, 0.007)])
    model.save(tmp_path / "timing.json")
    fit = read_calibration(tmp_path / "timing.json")
    sample = StepSample(100, 5050, 3, 900, 0.0)
    step = np.array([[1, 100, 5050, 0, 3, 900, 4, 0]], np.float64)
    assert fit.step_time.seconds(step)[0] == pytest.approx(model.step_s(sample), rel=1e-6)
    assert fit.relative_std == pytest.approx(model.relative_std)
