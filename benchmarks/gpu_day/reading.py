"""What results say: what passed and failed, how far figures are from their targets, and records.

Targets are those of the cases (`benchmarks/kernels/gpu.toml`, `benchmarks/experts/on_gpu.toml`);
limits were measured beside the figures.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.case import Case, Run, load_case
from benchmarks.experts.on_gpu import beside
from benchmarks.gpu_day.results import Results, ResultsError, StageResult, sample_key
from benchmarks.kinds import kind_of
from benchmarks.record import measurement_record, read_record, record_file, write_record
from benchmarks.triples import Samples

# The cases that get records, and the stage that measures each.
RECORDED = {"kernels/gpu": "kernels", "experts/on_gpu": "models"}
PEER_STAGE = "llama_cpp"
MOST_ERRORS = 8

Entry = dict[str, Any]


def report(results: Results) -> str:
    """Lines for people."""
    lines = ["A rehearsal: figures mean nothing.", ""] if results.rehearsal else []
    for name, stage in results.stages.items():
        before = " (in an earlier call)" if stage.resumed else ""
        why = f": {stage.why}" if stage.why else ""
        times = f"{stage.seconds:6.1f} s {stage.cpu_seconds:7.1f} s of processors"
        lines.append(f"{name:10} {stage.status:13} {times}{before}{why}")
    lines += ["", *_failures(results), *_left_out(results), *_facts(results), *_errors(results)]
    for case in RECORDED:
        entries = entries_of(results, case)
        if entries:
            lines += ["", f"{case}: {len(entries)} figures"]
            lines += [figure(entry, judged=not results.rehearsal) for entry in entries]
    return "\n".join(lines)


def _failures(results: Results) -> Iterator[str]:
    for name, stage in results.stages.items():
        for check in stage.of_kind("check"):
            if not check["passed"]:
                yield f"FAILED {name}: {check['name']}: {check['detail']}"


def _left_out(results: Results) -> Iterator[str]:
    for name, stage in results.stages.items():
        for one in stage.of_kind("left_out"):
            yield f"left out of {name}: {one['what']}: {one['why']}"


def _facts(results: Results) -> Iterator[str]:
    """Those that are short: long ones are for who looks at the file."""
    for name, stage in results.stages.items():
        for fact in stage.of_kind("fact"):
            text = _rounded(fact["value"])
            if len(text) < 200 and "\n" not in text:
                yield f"{name}: {fact['name']}: {text}"


def _rounded(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _errors(results: Results) -> Iterator[str]:
    """The comparisons of tests that used the most of their tolerance."""
    sizes: dict[str, dict[str, float]] = {}
    for fact in results.stages.get("tests", StageResult(status="not begun")).of_kind("fact"):
        if fact["name"].startswith("errors: "):
            sizes |= fact["value"]
    close = sorted(sizes.items(), key=lambda one: -one[1].get("of_tolerance", 0.0))
    for test, error in close[:MOST_ERRORS]:
        if "of_tolerance" in error:
            yield f"error of {test}: {error['of_tolerance']:.2f} of its tolerance"


def entries_of(results: Results, case_name: str) -> list[Entry]:
    """What was measured of a case, in the form and order of its record."""
    case = load_case(case_name)
    run = Run(case=case, quick=results.rehearsal)
    stage = results.stages.get(RECORDED[case_name])
    found: dict[str, Samples] = {}
    for row in stage.of_kind("samples") if stage else ():
        samples = _samples(row)
        if case_name == "experts/on_gpu":
            samples = beside(run, samples, _peers(results, samples.params))
        found[sample_key(case_name, samples.name, samples.params)] = samples
    return [
        measurement_record(case.declared(samples.name, samples.params), samples)
        for key in _declared(case, quick=results.rehearsal)
        for samples in [found.get(key)]
        if samples is not None
    ]


def _declared(case: Case, *, quick: bool) -> list[str]:
    return [
        sample_key(case.name, measurement.name, point)
        for measurement in case.measurements
        for point in measurement.points(quick)
    ]


def _samples(row: Mapping[str, Any]) -> Samples:
    limit = row["limit"]
    return Samples(
        name=row["name"],
        params=row["params"],
        values=row["values"],
        limit=(limit[0], limit[1]) if limit else None,
        peers=row["peers"],
        seeds=row["seeds"],
    )


def _peers(results: Results, params: Mapping[str, Any]) -> dict[float, tuple[str, Any]]:
    """What llama.cpp did on the same file, by share of experts on the GPU."""
    stage = results.stages.get(PEER_STAGE)
    return {
        row["gpu_share"]: (row["label"], {int(n): rates for n, rates in row["rates"].items()})
        for row in (stage.of_kind("peer") if stage else ())
        if row["layers"] == params["layers"]
    }


def figure(entry: Entry, *, judged: bool = True) -> str:
    """One measurement beside its limit and peers, and where it is judged its target."""
    params = ", ".join(f"{key}={value}" for key, value in entry["params"].items())
    text = f"{entry['name']}{{{params}}}: {entry['value']:g} {entry['unit']}"
    if "of_limit" in entry:
        text += f", {entry['of_limit']:.2f} of {entry['limit']['name']}"
    for peer, ratio in entry.get("of_peer", {}).items():
        text += f", {ratio:.2f} x {peer}"
    for part, wanted in entry.get("target", {}).items() if judged else ():
        text += f"; target {part} {wanted}: {_distance(short_of(part, wanted, entry))}"
    return text


def _distance(factor: float | None) -> str:
    if factor is None:
        return "not judged: nothing to compare with"
    return "met" if factor <= 1 else f"NOT met, {factor:.2f} times short"


def short_of(part: str, wanted: Any, entry: Mapping[str, Any]) -> float | None:
    """By what factor a figure must become better for a part of its target; up to 1: it is met.

    None: it cannot be judged.
    """
    if part == "at_most":
        return float(entry["value"] / wanted)
    if part == "at_least":
        return float(wanted / entry["value"])
    if part == "of_limit":
        return float(wanted / entry["of_limit"]) if "of_limit" in entry else None
    ratios = entry.get("of_peer", {})
    if part == "of_best_peer":
        return float(wanted / min(ratios.values())) if ratios else None
    if part == "of_peer":
        factors = [
            factor / ratio
            for name, factor in wanted.items()
            for label, ratio in ratios.items()
            if label.startswith(name)
        ]
        return float(max(factors)) if factors else None
    raise ResultsError(f"target {part} has no distance; these cases have none of it so far")


def write_records(results: Results) -> Iterator[str]:
    """Write what was measured as the accepted records of this kind of GPU, and say so.

    A record of more points stays: a call that was cut short is gone on with by `--resume`.
    """
    if results.rehearsal:
        yield "a rehearsal leaves no records"
        return
    for case_name, stage_name in RECORDED.items():
        entries = entries_of(results, case_name)
        if not entries:
            yield f"{case_name}: nothing was measured"
            continue
        stage, case = results.stages[stage_name], load_case(case_name)
        place = next(stage.of_kind("machine"))
        record = {
            "case": case_name,
            "kind": kind_of(place["machine"], on_gpu=True),
            "commit": stage.commit,
            "date": stage.date,
            "quick": False,
            "machine": place["machine"],
            "versions": place["versions"],
            "workload": dict(case.workload),
            "measurements": entries,
            "seconds": stage.seconds,
        }
        number = len(_declared(case, quick=False))
        before = read_record(case_name, record["kind"])
        if before is not None and len(before["measurements"]) > len(entries):
            yield (
                f"{case_name}: not written: {record['kind']} has a record of "
                f"{len(before['measurements'])} figures, and these are {len(entries)} of {number}: "
                "measure the others with run --resume"
            )
            continue
        file = record_file(case_name, record["kind"])
        write_record(json.loads(json.dumps(record)), file)
        yield f"{file}: {len(entries)} of {number} figures"
    yield "now: python -m benchmarks table"
