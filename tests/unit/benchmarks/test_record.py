import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from benchmarks.__main__ import new_record_file, run_case
from benchmarks.case import Case, CaseError, Measurement, Run, case_names, load_case
from benchmarks.record import (
    accepted_records,
    find_measurement,
    measurement_record,
    target_met,
    write_record,
)
from benchmarks.triples import Samples

SCHEMA = json.loads(Path("benchmarks/record.schema.json").read_text())


def rate(**fields: Any) -> Measurement:
    return Measurement(name="rate", unit="GB/s", better="higher", **fields)


def test_ratios_are_medians_of_the_triples_own_ratios() -> None:
    samples = Samples(name="rate", values=[9.0, 18.0, 8.0], limit=("copy", [10.0, 20.0, 10.0]))
    entry = measurement_record(rate(), samples)
    assert entry["value"] == 9.0
    assert entry["limit"] == {"name": "copy", "value": 10.0}
    assert entry["of_limit"] == pytest.approx(0.9)  # not 9 / 10 by chance: 0.9, 0.9, 0.8
    assert entry["of_limit_ci"] == [0.8, 0.9]


def test_where_lower_is_better_ratios_turn_round() -> None:
    declared = Measurement(name="forward", unit="ms", better="lower")
    samples = Samples(name="forward", values=[2.0], limit=("roofline", 1.0), peers={"p 1": [3.0]})
    entry = measurement_record(declared, samples)
    assert entry["of_limit"] == 0.5
    assert entry["of_peer"] == {"p 1": 1.5}


def test_no_values_give_no_result() -> None:
    entry = measurement_record(rate(), Samples(name="rate", values=[], dropped=60))
    assert entry["value"] is None and entry["met"] is None and "noisy" in entry["no_result"]


@pytest.mark.parametrize(
    ("target", "entry", "met"),
    [
        ({}, {"value": 1.0}, None),
        ({"at_most": 0.16}, {"value": 0.15}, True),
        ({"at_most": 0.16}, {"value": 0.17}, False),
        ({"at_least": 3}, {"value": 2.9}, False),
        ({"of_limit": 0.9}, {"value": 1.0, "of_limit": 0.91}, True),
        ({"of_limit": 0.9}, {"value": 1.0}, None),
        ({"of_best_peer": 1.1}, {"of_peer": {"a": 3.0, "b": 1.0}}, False),
        ({"of_best_peer": 3.0}, {"value": 1.0}, None),
        ({"at_most": 1, "of_best_peer": 3.0}, {"value": 2.0}, False),
        ({"of_peer": {"a": 2.0}}, {"of_peer": {"a 1": 2.1, "a 2": 2.0, "b": 1.0}}, True),
        ({"of_peer": {"a": 2.0}}, {"of_peer": {"a 1": 2.1, "a 2": 1.9}}, False),
        ({"of_peer": {"a": 2.0, "b": 1.0}}, {"of_peer": {"a 1": 3.0}}, None),
        ({"of_best_peer_below_80": 1.15}, {"of_peer": {"a": 1.1}}, None),
        ({"of_best_peer_below_80": 1.15}, {"of_peer": {"a": 1.1}, "of_limit": 0.9}, True),
        ({"of_best_peer_below_80": 1.15}, {"of_peer": {"a": 1.1}, "of_limit": 0.85}, False),
        ({"of_best_peer_below_80": 1.15}, {"of_peer": {"a": 1.2}, "of_limit": 0.85}, True),
        ({"never_behind": 1}, {"of_peer": {"a": 0.98}, "of_peer_ci": {"a": [0.9, 1.01]}}, True),
        ({"never_behind": 1}, {"of_peer": {"a": 0.98}, "of_peer_ci": {"a": [0.97, 0.99]}}, False),
        ({"never_behind": 1}, {"of_peer": {"a": 0.96}, "of_peer_ci": {"a": [0.9, 1.1]}}, False),
    ],
)
def test_targets(target: dict[str, Any], entry: dict[str, Any], met: bool | None) -> None:
    assert target_met(target, entry) is met


def test_unknown_targets_and_directions_are_refused() -> None:
    with pytest.raises(ValueError, match="of_limits"):
        rate(target={"of_limits": 1.0})
    with pytest.raises(ValueError, match="allowed: higher, lower"):
        Measurement(name="x", unit="s", better="faster")


def test_points_are_the_product_and_quick_ones_replace_theirs() -> None:
    declared = rate(params={"a": [1, 2], "b": ["x"]}, quick_params={"a": [0]})
    assert list(declared.points(quick=False)) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert list(declared.points(quick=True)) == [{"a": 0, "b": "x"}]
    assert declared.covers({"a": 0, "b": "x"}) and not declared.covers({"a": 3, "b": "x"})


def test_rows_hold_values_that_belong_together() -> None:
    rows = [{"a": 1, "b": 10}, {"a": 2, "b": 20}]
    declared = rate(rows=rows, quick_rows=rows[1:], params={"c": [3, 4]})
    points = list(declared.points(quick=False))
    assert points[0] == {"a": 1, "b": 10, "c": 3} and len(points) == 4
    assert list(declared.points(quick=True)) == [{**rows[1], "c": 3}, {**rows[1], "c": 4}]
    assert all(map(declared.covers, points))
    assert not declared.covers({"a": 1, "b": 20, "c": 3})
    assert not declared.covers({"c": 3})


def test_defaults_are_laid_under_every_measurement(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.case.CASES", tmp_path)
    (tmp_path / "selftest").mkdir()
    (tmp_path / "selftest" / "copy.toml").write_text(
        """
        about = "a case of the tests"
        measures = ["native/net"]
        [defaults]
        unit = "s"
        better = "lower"
        params = { a = [1], b = [2] }
        [[measurements]]
        name = "x"
        [[measurements]]
        name = "y"
        better = "higher"
        params = { b = [3] }
        """
    )
    x, y = load_case("selftest/copy").measurements
    assert (x.unit, x.better, x.params) == ("s", "lower", {"a": [1], "b": [2]})
    assert (y.unit, y.better, y.params) == ("s", "higher", {"a": [1], "b": [3]})


def case(runner: Any, *measurements: Measurement) -> Case:
    return Case(
        name="area/case",
        about="a case of the tests",
        runner=runner,
        measurements=measurements,
        workload={"size": 10, "seed": 1},
        quick_workload={"size": 2},
    )


def test_a_run_writes_what_the_schema_says(tmp_path: Path) -> None:
    def runner(run: Run) -> Any:
        for params in run.params("rate"):
            yield Samples(
                name="rate",
                params=params,
                values=[1.0, 2.0],
                limit=("copy", 3.0),
                peers={"peer 1.0": [1.0, 1.0]},
                seeds=run.seeds,
                simulated=True,
            )
        yield Samples(name="rate", params={"threads": 2}, values=[])

    declared = rate(params={"threads": [1]}, target={"never_behind": 1})
    wider = rate(params={"threads": [2]})
    run = Run(case=case(runner, declared, wider), quick=True)
    # The generator asks for `rate` of both declarations; a point measured twice is the runner's.
    record = run_case(run)
    file = tmp_path / "deep" / "record.json"
    write_record(record, file)
    read = json.loads(file.read_text())
    jsonschema.validate(read, SCHEMA)
    assert read["workload"] == {"size": 2, "seed": 1}
    assert find_measurement(read, "rate", {"threads": "1"})["met"] is True
    with pytest.raises(LookupError, match="2 entries"):
        find_measurement(read, "rate", {"threads": "2"})


def test_an_undeclared_measurement_is_refused() -> None:
    def runner(run: Run) -> Any:
        yield Samples(name="other", values=[1.0])

    undeclared = case(runner, rate())
    with pytest.raises(CaseError, match="declares no measurement other"):
        run_case(Run(case=undeclared))


def test_a_quick_record_goes_elsewhere() -> None:
    record = {"case": "area/case", "kind": "avx512", "quick": False}
    assert new_record_file(record) == Path("benchmarks/results/area/case/avx512.json").resolve()
    assert "results" not in new_record_file(record | {"quick": True}).parts


def test_records_of_two_kinds_stand_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.record.RESULTS", tmp_path)
    for kind in ("avx2", "amx"):
        record = {"case": "area/case", "kind": kind, "quick": False}
        write_record(record, new_record_file(record))
    assert [record["kind"] for record in accepted_records()] == ["amx", "avx2"]


@pytest.mark.parametrize("name", case_names())
def test_every_case_loads(name: str) -> None:
    measurements = load_case(name).measurements
    # What a quick run leaves out says so by `quick_rows = []`; nothing is left out by mistake.
    quick = [one for one in measurements if one.quick_rows != []]
    assert quick, "a quick run measures something"
    for measurement in quick:
        assert list(measurement.points(quick=True)), f"{measurement.name} has no quick point"


def test_the_framework_runs_a_case() -> None:
    record = run_case(Run(case=load_case("selftest/copy"), quick=True))
    jsonschema.validate(record, SCHEMA)


def test_an_unknown_case_names_those_that_exist() -> None:
    with pytest.raises(CaseError, match="selftest/copy"):
        load_case("selftest/other")
