"""Numbers in README and docs, and the records they name.

A printed number names its record in a comment right behind it, on the same line or in the same
table cell:

    12.3 GB/s <!-- record: transfer/same_host read{block_bytes=1048576,threads=1} -->
    3.2x <!-- record: serving/concurrency output_tokens_per_s{concurrency=16} of_peer.vllm -->

That is: the case, the measurement with enough parameters to name one, and a field of it when it is
not `value` (`p90`, `of_limit`, `limit.value`, `peers.NAME`, `of_peer.NAME`; a peer's name may leave
its version out). The number is the last one before the comment; a percent sign behind it means
hundredths. It must be the recorded value, rounded to the decimals printed.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.record import RESULTS, find_measurement

MARKER = re.compile(
    r"<!-- record: (?P<case>[\w/]+) (?P<name>\w+)(?:\{(?P<params>[^}]*)\})?"
    r"(?: (?P<field>[^>]+?))? -->"
)
NUMBER = re.compile(r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)(\s*%)?")


class Printed(NamedTuple):
    """A number in a page that names its record."""

    where: str
    text: str
    case: str
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
        file = results / f"{self.case}.json"
        if not file.is_file():
            raise LookupError(f"no record {file.name} in {file.parent}")
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


def printed_numbers(page: str, text: str) -> Iterator[Printed]:
    """All numbers of a page that name a record.

    Raises:
        ValueError: a marker that cannot be read, or one without a number before it.
    """
    for line_number, line in enumerate(text.splitlines(), start=1):
        where = f"{page}:{line_number}"
        if line.count("<!-- record:") != len(MARKER.findall(line)):
            raise ValueError(f"{where}: cannot read this record marker")
        start = 0
        for marker in MARKER.finditer(line):
            numbers = list(NUMBER.finditer(line, start, marker.start()))
            if not numbers:
                raise ValueError(f"{where}: no number before the record marker")
            start = marker.end()
            pairs = (pair.split("=", 1) for pair in (marker["params"] or "").split(",") if pair)
            yield Printed(
                where=where,
                text=numbers[-1][0],
                case=marker["case"],
                name=marker["name"],
                params={key.strip(): value.strip() for key, value in pairs},
                field=marker["field"] or "value",
            )
