"""Rows and plots of a report, of results that were made by hand."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from inlay.cluster.slo import SloClass
from inlay.core.errors import ConfigError
from inlay.sim.figures import figures
from inlay.sim.gaps import NUM_BINS
from inlay.sim.report import charts, drawing, page, rows
from inlay.sim.report.run import Run
from inlay.sim.results import Results
from inlay.sim.scenario import Kind, Scenario
from inlay.sim.step_time import StepTime
from inlay.sim.tier import TIERS
from inlay.sim.world import InstanceConfig

INSTANCE = InstanceConfig(step_time=StepTime.fitted([1e-3] * 6), num_pages=100)
NAN = float("nan")


def run(name: str = "one", **changes: object) -> Run:
    """Four requests of 100 tokens, one each second; the second one is refused."""
    results = Results(
        arrival_s=np.array([0.0, 1.0, 2.0, 3.0]),
        first_s=np.array([1.0, NAN, 6.0, 4.0]),
        end_s=np.array([3.0, NAN, 8.0, 4.0]),
        tbt_s=np.array([0.3, NAN, 0.1, 0.0]),
        longest_gap_s=np.array([0.4, NAN, 0.1, 0.0]),
        cached_tokens=np.array([0, -1, 50, 100]),
        host_tokens=np.array([0, -1, 20, 30]),
        disk_tokens=np.array([0, -1, 0, 0]),
        store_tokens=np.array([0, -1, 0, 50]),
        preemptions=np.array([1, -1, 0, 0]),
        prefill=np.array([0, -1, 1, 1]),
        decode=np.array([0, -1, 1, 1]),
        expected_ttft_s=np.array([1.0, NAN, 1.0, 1.0]),
        refusals={1: "full for 2.5 s"},
        input_tokens=np.array([100, 100, 100, 100], np.int32),
        output_tokens=np.array([11, 50, 6, 1], np.int32),
        group=np.zeros(4, np.uint8),
        groups=("default",),
        busy_s=np.array([4.0, 2.0]),
        steps=np.array([10, 4]),
        sent_bytes=np.array([0.0, 7.0]),
        copied_blocks=2,
        tier_bytes=np.ones((2, len(TIERS), 2)),
        lost_blocks=0,
        gap_counts=np.zeros(NUM_BINS, np.int64),
        role_changes=0,
    )
    results = replace(results, **changes)
    kind = Kind(instance=INSTANCE, name="all", count=2, assumed=True)
    scenario = Scenario(kinds=(kind,), slo=SloClass(ttft_s=2.0))
    return Run(name=name, scenario=scenario, results=results, figures=figures(results, scenario))


def test_distributions_are_of_what_was_not_refused() -> None:
    found = rows.distribution([run(), run("two", first_s=np.array([100.0, NAN, 6, 4]))], "ttft_s")
    # Three requests: shares of each run are one together, in the same bins.
    for name in ("one", "two"):
        assert sum(row["share"] for row in found if row["run"] == name) == pytest.approx(1, 1e-3)
    seconds = [row["seconds"] for row in found if row["run"] == "two"]
    assert seconds == [row["seconds"] for row in found if row["run"] == "one"]
    assert [row["share"] > 0.3 for row in found if row["run"] == "two"][-1]


def test_attainment_and_objectives() -> None:
    found = rows.kept([run()], "ttft_s")
    assert (found[0]["share"], found[-1]["share"]) == (0.5, 0.75)
    assert rows.objectives([run()], "ttft_s") == [{"class": "default", "seconds": 2.0}]
    assert rows.objectives([run()], "tbt_s") == []


def test_load_and_hits_over_time() -> None:
    found = rows.load([run()])
    waiting = {r["seconds"]: r["requests"] for r in found if r["phase"] == "before the first token"}
    going_on = {r["seconds"]: r["requests"] for r in found if r["phase"] == "after"}
    at = min(waiting, key=lambda second: abs(second - 3.5))
    assert (waiting[at], going_on[at]) == (2, 0)  # the third and the fourth; the first has ended
    assert list(waiting.values())[-1] == list(going_on.values())[-1] == 0
    assert [row["share"] for row in rows.hits([run()])] == [0.0, 0.5, 1.0]


def test_busy_and_refused() -> None:
    assert rows.busy([run()]) == [{"run": "one", "group": "all", "share": 3 / 8}]
    assert rows.refused([run()]) == [{"run": "one", "reason": "full for * s", "requests": 1}]


def test_where_tokens_were_found() -> None:
    shares = {row["tier"]: row["share"] for row in rows.tiers([run()])}
    assert shares == {"device": 50 / 300, "host": 50 / 300, "disk": 0, "store": 50 / 300}
    none = np.zeros(4, np.int64)
    alone = run(host_tokens=none, store_tokens=none)
    titles = [one["title"] for one in charts.charts([alone])]
    assert "Where prompt tokens were found" in [one["title"] for one in charts.charts([run()])]
    assert "Where prompt tokens were found" not in titles


def test_nothing_but_refusals_can_be_shown() -> None:
    none = np.full(4, NAN)
    all_refused = run(
        first_s=none,
        end_s=none,
        tbt_s=none,
        prefill=np.full(4, -1),
        refusals=dict.fromkeys(range(4), "no"),
    )
    assert b"Refused requests" in drawing.svg(charts.together([all_refused]))


def test_a_plot_of_refusals_only_where_there_are_some() -> None:
    with_some = [one["title"] for one in charts.charts([run()])]
    without = [one["title"] for one in charts.charts([run(refusals={})])]
    assert with_some == [*without, "Refused requests"]


def test_pictures(tmp_path) -> None:
    page.write_picture(tmp_path / "plots.png", [run(), run("two")])
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG")
    page.write_picture(tmp_path / "plots.svg", [run(), run("two")])
    drawn = (tmp_path / "plots.svg").read_text()
    assert "Time to first token" in drawn and "two" in drawn
    with pytest.raises(ConfigError, match=r"\.png or \.svg"):
        page.check_picture(tmp_path / "plots.pdf")


def test_what_draws_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r'pip install "inlay\[report\]"'):
        drawing.find_drawing()
