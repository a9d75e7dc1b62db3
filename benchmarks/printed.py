"""Numbers in README and docs, and the records they name.

A printed number names its record in a comment right behind it, on the same line or in the same
table cell:

    12.3 GB/s <!-- record: transfer/same_host/avx2 read{block_bytes=1048576,threads=1} -->
    3.2x <!-- record: serving/concurrency/amx output_tokens_per_s{concurrency=16} of_peer.vllm -->

That is: the case and the kind of processor, the measurement with enough parameters to name one, and
a field of it when it is not `value` (`p90`, `of_limit`, `limit.value`, `peers.NAME`,
`of_peer.NAME`; a peer's name may leave its version out). The number is the last one before the
comment; a percent sign behind it means hundredths. It must be the recorded value, rounded to the
decimals printed.
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.kinds import is_kind
from benchmarks.machine import ROOT
from benchmarks.record import RESULTS, find_measurement

MARKER = re.compile(
    r"<!-- record: (?P<case>\w+/\w+)(?:/(?P<kind>[\w-]+))? (?P<name>\w+)"
    r"(?:\{(?P<params>[^}]*)\})?(?: (?P<field>[^>]+?))? -->"
)
NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(\s*%)?")


class Printed(NamedTuple):
    """A number in a page that names its record.

    Attributes:
        where: page and line.
        around: the row, item or paragraph that it stands in.
    """

    where: str
    around: str
    text: str
    case: str
    kind: str
    name: str
    params: dict[str, str]
    field: str

    def value(self) -> float:
        """The number as printed."""
        match = NUMBER.fullmatch(self.text)
        assert match, self.text
        return float(match[1].replace(",", "")) / (100 if match[2] else 1)

    def tolerance(self) -> float:
        """Half a unit of the last digit printed."""
        digits = self.text.rstrip(" %").partition(".")[2]
        return 0.5 * 10.0 ** -len(digits) / (100 if "%" in self.text else 1)

    def agrees_with(self, recorded: float) -> bool:
        """Whether the recorded value rounds to the printed one."""
        return abs(self.value() - recorded) <= self.tolerance() * (1 + 1e-6)

    def recorded(self, results: Path = RESULTS) -> float:
        """The value in the record. Raises LookupError if the record or the entry is missing."""
        file = results / self.case / f"{self.kind}.json"
        if not file.is_file():
            raise LookupError(
                f"{self.where}: no record {self.case}/{self.kind}; of this case there are "
                f"{kinds_of(self.case, results)}"
            )
        entry = find_measurement(json.loads(file.read_text()), self.name, self.params)
        value = field_of(entry, self.field)
        if not isinstance(value, int | float):
            raise LookupError(f"{self.field} of {self.name} is {value!r}, not a number")
        return float(value)


def field_of(entry: dict[str, Any], field: str) -> Any:
    """`limit.value` or `peers.NAME` of a measurement."""
    first, _, rest = field.partition(".")
    if not rest:
        return entry.get(first)
    inner = entry.get(first, {})
    if rest in inner:
        return inner[rest]
    fitting = [key for key in inner if key == rest or key.startswith(f"{rest} ")]
    if len(fitting) != 1:
        raise LookupError(f"{first} has {sorted(inner)}, the page names {rest!r}")
    return inner[fitting[0]]


def kinds_of(case: str, results: Path = RESULTS) -> str:
    """The kinds of processor that a case has records of, as a list for people."""
    return ", ".join(sorted(file.stem for file in (results / case).glob("*.json"))) or "none"


def printed_numbers(page: str, text: str) -> Iterator[Printed]:
    """All numbers of a page that name a record.

    Raises:
        ValueError: a marker that cannot be read, that names no kind of processor, or without a
            number before it.
    """
    lines = text.splitlines()
    for index, line in enumerate(lines):
        where = f"{page}:{index + 1}"
        if line.count("<!-- record:") != len(MARKER.findall(line)):
            raise ValueError(f"{where}: cannot read this record marker")
        start = 0
        for marker in MARKER.finditer(line):
            case, kind = marker["case"], marker["kind"]
            if kind is None or not is_kind(kind):
                raise ValueError(
                    f"{where}: {case}{f'/{kind}' if kind else ''} names no kind of processor: "
                    f"write {case}/KIND; there are records of {kinds_of(case)}"
                )
            numbers = list(NUMBER.finditer(line, start, marker.start()))
            if not numbers:
                raise ValueError(f"{where}: no number before the record marker")
            start = marker.end()
            pairs = (pair.split("=", 1) for pair in (marker["params"] or "").split(",") if pair)
            yield Printed(
                where=where,
                around=_around(lines, index),
                text=numbers[-1][0],
                case=case,
                kind=kind,
                name=marker["name"],
                params={key.strip(): value.strip() for key, value in pairs},
                field=marker["field"] or "value",
            )


def readme_numbers() -> list[Printed]:
    """All numbers of README that name a record. Raises ValueError as `printed_numbers`."""
    return list(printed_numbers("README.md", (ROOT / "README.md").read_text()))


def _around(lines: Sequence[str], index: int) -> str:
    """The row of a table that a line is, or the lines of its item or paragraph."""
    if lines[index].lstrip().startswith("|"):
        return lines[index]
    first, last = index, index + 1
    while first and not _begins(lines[first]) and lines[first - 1].strip():
        first -= 1
    while last < len(lines) and lines[last].strip() and not _begins(lines[last]):
        last += 1
    return "\n".join(lines[first:last])


def _begins(line: str) -> bool:
    return line.lstrip().startswith(("|", "#", "- ", "* "))
