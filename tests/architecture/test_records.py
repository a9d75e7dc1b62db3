"""README and docs quote records, accepted records are whole, and the two agree."""

import json
import re
from pathlib import Path

import jsonschema
import pytest

from benchmarks.case import case_names, load_declaration
from benchmarks.kinds import kind_of
from benchmarks.printed import MARKER, Printed, printed_numbers
from benchmarks.record import RESULTS, accepted_records
from benchmarks.table import PAGE, page_text, without_counts
from tests.support.tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECORDS = sorted(RESULTS.rglob("*.json"))
SCHEMA = json.loads((ROOT / "benchmarks" / "record.schema.json").read_text())
NUMBERS = [
    number
    for page in PAGES
    if page.is_file()
    for number in printed_numbers(str(page.relative_to(ROOT)), page.read_text())
]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number.where}-{number.name}")
def test_printed_number_is_the_recorded_one(number: Printed) -> None:
    assert number.agrees_with(number.recorded()), f"recorded is {number.recorded()}"


@pytest.mark.parametrize("file", RECORDS, ids=lambda file: file.relative_to(RESULTS).as_posix())
def test_accepted_record_is_whole(file: Path) -> None:
    record = json.loads(file.read_text())
    jsonschema.validate(record, SCHEMA)
    assert (
        f"{record['case']}/{record['kind']}" == file.relative_to(RESULTS).with_suffix("").as_posix()
    )
    assert record["case"] in case_names()
    on_gpu = "gpu" in load_declaration(record["case"]).get("needs", ())
    assert record["kind"] == kind_of(record["machine"], on_gpu=on_gpu)
    assert not record["quick"], "a quick record is no accepted one"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_linked_records_exist(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]*benchmarks/results[^)#]*)\)", page.read_text())
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, f"no such record: {missing}"


def test_the_page_of_all_lines_is_that_of_the_records() -> None:
    written = without_counts(PAGE.read_text())
    assert written == page_text(accepted_records(), {}), "run `python -m benchmarks table`"


def test_speeds_in_the_readme_name_their_record() -> None:
    speed = re.compile(r"\d\s*(?:tokens/s|tok/s|GB/s|TFLOPS|keys/s|requests/s)")
    text = re.sub(r"```.*?```", lambda code: "\n" * code[0].count("\n"), README, flags=re.S)
    silent = [line for line in text.splitlines() if speed.search(line) and not MARKER.search(line)]
    assert not silent, "\n".join(silent)


README = (ROOT / "README.md").read_text()


def page(line: str) -> Printed:
    (number,) = printed_numbers("page", line)
    return number


def test_markers_are_read() -> None:
    number = page(
        "| 16 | **1,234.5** tok/s <!-- record: a/b/avx2 rate{n=16,model=demo} peers.x --> | ok |"
    )
    assert (number.text, number.value(), number.tolerance()) == ("1,234.5", 1234.5, 0.05)
    assert (number.case, number.kind) == ("a/b", "avx2")
    assert (number.name, number.field) == ("rate", "peers.x")
    assert number.params == {"n": "16", "model": "demo"}


def test_each_marker_takes_the_number_before_it() -> None:
    line = "3.2x <!-- record: a/b/avx2 rate --> of 16 % <!-- record: a/b/avx2 share -->"
    assert [number.text for number in printed_numbers("page", line)] == ["3.2", "16 %"]


@pytest.mark.parametrize(
    ("text", "recorded", "agrees"),
    [
        ("12", 11.6, True),
        ("12", 11.4, False),
        ("12.0", 12.06, False),
        ("1,235", 1234.5, True),
        ("16 %", 0.164, True),
        ("16 %", 0.17, False),
    ],
)
def test_rounding(text: str, recorded: float, agrees: bool) -> None:
    assert page(f"{text} <!-- record: a/b/avx2 c -->").agrees_with(recorded) is agrees


def test_bad_markers_are_errors() -> None:
    with pytest.raises(ValueError, match="cannot read"):
        list(printed_numbers("page", "3 <!-- record: no-case -->"))
    with pytest.raises(ValueError, match="no number"):
        list(printed_numbers("page", "fast <!-- record: a/b/avx2 c -->"))


@pytest.mark.parametrize("case", ["serving/startup", "serving/startup/avx3"])
def test_a_marker_without_a_kind_is_refused_by_name(case: str) -> None:
    with pytest.raises(ValueError, match=rf"page:1: {case} names no kind .* avx512_bf16"):
        page(f"3 <!-- record: {case} rss_mib -->")


def test_a_number_stands_in_its_row_item_or_paragraph() -> None:
    marked = "3 <!-- record: a/b/avx2 c -->"
    item_text = f"- one\n- two {marked}\n  goes on\n- three"
    text = f"| x |\n| {marked} |\n\nBefore.\n{item_text}\n\nP {marked}\nq"
    row, item, paragraph = printed_numbers("page", text)
    assert row.around == f"| {marked} |"
    assert item.around == f"- two {marked}\n  goes on"
    assert paragraph.around == f"P {marked}\nq"


def test_a_missing_record_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "amx.json").write_text("{}")
    with pytest.raises(LookupError, match="page:1: no record a/b/avx2; .* there are amx"):
        page("3 <!-- record: a/b/avx2 c -->").recorded(tmp_path)


def test_peers_may_leave_their_version_out(tmp_path: Path) -> None:
    entry = {"name": "c", "params": {"n": 1}, "of_peer": {"transformers 5.23.0": 3.21}}
    (tmp_path / "a" / "b").mkdir(parents=True)
    record = {"case": "a/b", "measurements": [entry]}
    (tmp_path / "a" / "b" / "avx2.json").write_text(json.dumps(record))
    number = page("3.2x <!-- record: a/b/avx2 c{n=1} of_peer.transformers -->")
    assert number.recorded(tmp_path) == 3.21
    assert number.agrees_with(3.21)
