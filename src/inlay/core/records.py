"""Records of text files: JSON lists, a JSON object a line, and CSV, each with where it stands.

Knows nothing of what columns mean. Text is read by `core.text_files`.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError, InlayError
from inlay.core.text_files import kind_of, parse_json, read_text, reason_of

Record = dict[str, Any]

_REMEDY = "correct it"
_decode = json.JSONDecoder().decode  # `json.loads` looks at its options for each line
_MAX_CSV_FIELD_BYTES = 2**30
_NO_CSV_ENDS = "\v\f\x1c\x1d\x1e\x85\u2028\u2029"


@dataclass(frozen=True)
class Records:
    """The records of one file.

    Attributes:
        file: where they come from.
        rows: one object each, columns by name.
        lines: the line each begins at, from 1; None: they are a JSON list, whose lines are found
            when one is asked for.
        unit: what `lines` counts.
    """

    file: Path
    rows: list[Record]
    lines: Sequence[int] | None
    unit: str = "line"

    def place(self, row: int) -> str:
        """Where a record stands, such as `data/train.jsonl, line 7`; of a list, which may be all in
        one line, also the how manieth it is.

        Cost: of a JSON list, reading the file up to it.
        """
        if self.lines is not None:
            return f"{self.file}, {self.unit} {self.lines[row]}"
        return _place_in_list(self.file, row)


def read_json_records(file: Path, *, error: type[InlayError] = ConfigError) -> Records:
    """Read a list of objects; objects a line each are taken as well, as some files are named so.

    Args:
        error: what is raised for a file that is none.

    Raises:
        InlayError: `error`, with file and line, where the file is not UTF-8 or no such list.
        OSError: it cannot be read.
    """
    text = read_text(file, error=error)
    try:
        found = parse_json(text, file, remedy=_REMEDY, error=error)
    except error:
        if text.lstrip()[:1] == "{" and "\n" in text.strip():
            return _from_lines(file, text, error)
        raise
    if not isinstance(found, list):
        raise error(f"{file} holds a single {kind_of(found)}: must be a list of objects")
    for number, record in enumerate(found):
        if not isinstance(record, dict):
            raise error(
                f"{_place_in_list(file, number)}: is a {kind_of(record)}: must be an object with "
                "a value for each column"
            )
    return Records(file, found, None)


def read_json_lines(file: Path, *, error: type[InlayError] = ConfigError) -> Records:
    """Read an object of each line that is not empty. Raises as `read_json_records`."""
    return _from_lines(file, read_text(file, error=error), error)


def read_csv(file: Path, *, error: type[InlayError] = ConfigError) -> Records:
    """Read CSV whose first line names the columns; values are texts.

    Raises:
        InlayError: `error`, with file and line, where it is not UTF-8 or no CSV, a line has more
            or fewer values than columns, or two columns have one name.
        OSError: it cannot be read.
    """
    csv.field_size_limit(_MAX_CSV_FIELD_BYTES)
    reader = csv.reader(_csv_lines(read_text(file, error=error)), strict=True)
    rows: list[Record] = []
    lines: list[int] = []
    try:
        header = next(reader, [])
        if twice := [name for name, count in Counter(header).items() if count > 1]:
            raise error(f"{file}, line 1: names the column {twice[0]!r} twice: rename one")
        line = reader.line_num + 1
        for values in reader:
            if values and len(values) != len(header):
                raise error(
                    f"{file}, line {line}: has {len(values)} values, the first line names "
                    f"{len(header)} columns: put values with commas or line ends into double quotes"
                )
            if values:
                rows.append(dict(zip(header, values, strict=True)))
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as wrong:
        raise error(
            f"{file}, line {reader.line_num}: is no CSV ({wrong}): close its quotes"
        ) from None
    return Records(file, rows, lines)


def parse_record(line: str) -> Record:
    """The JSON object that a line is.

    Raises:
        ValueError: it is none; says why, but not where.
    """
    try:
        record = _decode(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(reason_of(error)) from None
    if not isinstance(record, dict):
        raise ValueError(f"is a {kind_of(record)}: must be an object")
    return record


def _csv_lines(text: str) -> Iterable[str]:
    """Lines with their ends, of which CSV has fewer than `str`, whose way takes half as long."""
    if any(end in text for end in _NO_CSV_ENDS):
        return io.StringIO(text, newline="")
    return text.splitlines(keepends=True)


def _from_lines(file: Path, text: str, error: type[InlayError]) -> Records:
    rows: list[Record] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            rows.append(parse_record(line))
        except ValueError as wrong:
            raise error(f"{file}, line {number}: {wrong}: {_REMEDY}") from None
        lines.append(number)
    return Records(file, rows, lines)


def _place_in_list(file: Path, row: int) -> str:
    """The line at which an item of a JSON list begins, and its number, from 1."""
    text = read_text(file)
    decoder = json.JSONDecoder()
    at = text.index("[") + 1
    for _ in range(row + 1):
        while text[at] in " \t\r\n,":
            at += 1
        begin = at
        _, at = decoder.raw_decode(text, at)
    return f"{file}, line {text.count(chr(10), 0, begin) + 1}, record {row + 1}"
