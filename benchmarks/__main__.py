"""Measures what the project claims, and says how old and how good the records of it are."""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.case import CaseError, Run, case_names, load_case, load_declaration
from benchmarks.kinds import kind_of
from benchmarks.record import measurement_record, record_file, write_record
from benchmarks.refresh import refresh
from benchmarks.stale import print_stale
from benchmarks.table import write_table
from benchmarks.triples import Comparison, Samples, measure_triples

QUICK_LIMIT_S = 50
PEERS_HELP = "scripts that measure other systems"


def main() -> None:
    """Run the command line. Status 0 means that a case ran, whatever it measured."""
    options = _parser().parse_args()
    try:
        sys.exit(options.do(options))
    except CaseError as error:
        sys.exit(f"error: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)

    listing = verbs.add_parser("list", help="name the cases and what they measure")
    listing.set_defaults(do=lambda options: _list())

    run = verbs.add_parser("run", help="run one case and write its record")
    run.add_argument("case", metavar="AREA/CASE")
    run.add_argument("--quick", action="store_true", help="fewer repeats, smaller sizes")
    run.add_argument("--peers", type=Path, metavar="DIR", help=PEERS_HELP)
    run.add_argument("--json", type=Path, metavar="PATH", help="where the record goes")
    run.set_defaults(do=_run)

    stale = verbs.add_parser("stale", help="say how many commits old each record is")
    stale.add_argument("--readme", action="store_true", help="only what README quotes")
    stale.set_defaults(do=lambda options: print_stale(options.readme))

    again = verbs.add_parser("refresh", help="run cases again, and say what changed")
    again.add_argument(
        "cases", metavar="AREA/CASE", nargs="*", help="default: all that have a record"
    )
    again.add_argument(
        "--stale", type=int, metavar="N", help="only those without a record here of under N commits"
    )
    again.add_argument("--peers", type=Path, metavar="DIR", help=PEERS_HELP)
    again.set_defaults(do=lambda options: refresh(options.cases, options.stale, options.peers))

    table = verbs.add_parser("table", help="write docs/benchmarks.md: every measured line")
    table.set_defaults(do=lambda options: write_table())
    return parser


def _list() -> None:
    for name in case_names():
        print(f"{name:28} {load_declaration(name)['about']}")


def _run(options: argparse.Namespace) -> None:
    case = load_case(options.case)
    record = run_case(Run(case=case, quick=options.quick, peers=options.peers))
    file = options.json or new_record_file(record)
    write_record(record, file)
    print(f"\nrecord: {file}")


def new_record_file(record: Mapping[str, Any]) -> Path:
    """Where a record goes: a quick one never replaces an accepted one."""
    if record["quick"]:
        name = record["case"].replace("/", "-")
        return Path(tempfile.mkdtemp(prefix="benchmark-")) / f"{name}.json"
    return record_file(record["case"], record["kind"])


def run_case(run: Run) -> dict[str, Any]:
    """Run a case and return its record; prints a line for each measurement as it is taken.

    Raises:
        CaseError: it cannot run here, or gave what it does not declare.
    """
    case, found = run.case, machine.machine()
    on_gpu = "gpu" in case.needs
    if on_gpu and "gpus" not in found:
        raise CaseError(
            f"{case.name} needs a CUDA device and PyTorch for it, and there is none: nothing was "
            "measured, and no record is written"
        )
    record: dict[str, Any] = {
        "case": case.name,
        "kind": kind_of(found, on_gpu=on_gpu),
        "commit": machine.commit(),
        "date": machine.now(),
        "quick": run.quick,
        "machine": found,
        "versions": machine.versions(*case.packages),
        "workload": run.workload,
        "measurements": [],
    }
    start = time.monotonic()
    for samples in _samples(run):
        declared = case.declared(samples.name, samples.params)
        entry = measurement_record(declared, samples)
        record["measurements"].append(entry)
        print(_line(entry), flush=True)
    record["seconds"] = round(time.monotonic() - start, 1)
    if run.quick and record["seconds"] > QUICK_LIMIT_S:
        print(f"quick took {record['seconds']} s, over {QUICK_LIMIT_S} s: make its sizes smaller")
    return record


def _samples(run: Run) -> Iterator[Samples]:
    # The runner keeps its servers and tensors alive while what it yielded is measured here.
    with closing(run.case.runner(run)) as items:
        for item in items:
            if isinstance(item, Comparison):
                yield from measure_triples(item, run.repeats, run.quick)
            else:
                yield item


def _line(entry: dict[str, Any]) -> str:
    params = ", ".join(f"{key}={value}" for key, value in entry["params"].items())
    text = f"{entry['name']}{{{params}}}: "
    if entry["value"] is None:
        return f"{text}{entry['no_result']}"
    text += f"{entry['value']:g} {entry['unit']} [{entry['p10']:g}..{entry['p90']:g}]"
    if "of_limit" in entry:
        text += f", {entry['of_limit']:.2f} of {entry['limit']['name']}"
    for peer, ratio in entry.get("of_peer", {}).items():
        text += f", {ratio:.2f} x {peer}"
    if entry["met"] is not None:
        text += ", target met" if entry["met"] else ", target NOT met"
    return text


if __name__ == "__main__":
    main()
