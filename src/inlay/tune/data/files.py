"""Records of data files: json, jsonl, csv, parquet and arrow, each with the place it stands at.

Knows nothing of what columns mean. Text must be UTF-8.
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError, DataError

Record = dict[str, Any]

_MAX_CSV_FIELD_BYTES = 2**30
# What UTF-16 and UTF-32 files begin with.
_OTHER_ENCODINGS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Records:
    """The records of one file.

    Attributes:
        file: where they come from.
        rows: one object each, columns by name.
        lines: the line each begins at, from 1; None: finding them is left until one is asked for.
        unit: what `lines` counts.
    """

    file: Path
    rows: list[Record]
    lines: Sequence[int] | None
    unit: str = "line"

    def place(self, row: int) -> str:
        """Where a record stands, such as `data/train.json, line 7`.

        Cost: of a JSON list, reading the file up to it.
        """
        line = self.lines[row] if self.lines is not None else _line_in_list(self.file, row)
        return f"{self.file}, {self.unit} {line}"


def read_records(file: Path) -> Records:
    """Read a file by the end of its name.

    Raises:
        ConfigError: there is no such file, or it is of no kind that is read.
        DataError: it is not UTF-8, or not what the end of its name says; with the line.
    """
    read = _READERS.get(file.suffix.lower())
    if read is None:
        raise ConfigError(f"{file}: must end in {', '.join(_READERS)}")
    try:
        records = read(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from None
    if not records.rows:
        raise DataError(f"{file} holds no records")
    return records


def _read_json(file: Path) -> Records:
    """A list of objects; objects a line each are taken as well, as some files are named so."""
    text = _read_text(file)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        if text.lstrip()[:1] == "{" and "\n" in text.strip():
            return _from_lines(file, text)
        raise _no_json(file, error) from None
    if not isinstance(found, list):
        raise DataError(f"{file} holds a single {_kind(found)}: must be a list of objects")
    for number, record in enumerate(found):
        if not isinstance(record, dict):
            raise DataError(
                f"{file}, line {_line_in_list(file, number)}: is a {_kind(record)}: must be an "
                "object with a value for each column"
            )
    return Records(file, found, None)


def _read_json_lines(file: Path) -> Records:
    return _from_lines(file, _read_text(file))


def _from_lines(file: Path, text: str) -> Records:
    rows: list[Record] = []
    lines: list[int] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise _no_json(file, error, number) from None
        if not isinstance(record, dict):
            raise DataError(f"{file}, line {number}: is a {_kind(record)}: must be an object")
        rows.append(record)
        lines.append(number)
    return Records(file, rows, lines)


def _read_csv(file: Path) -> Records:
    csv.field_size_limit(_MAX_CSV_FIELD_BYTES)
    reader = csv.reader(_read_text(file).splitlines(keepends=True), strict=True)
    rows: list[Record] = []
    lines: list[int] = []
    try:
        header = next(reader, [])
        line = reader.line_num + 1
        for values in reader:
            if values and len(values) != len(header):
                raise DataError(
                    f"{file}, line {line}: has {len(values)} values, the first line names "
                    f"{len(header)} columns: put values with commas or line ends into double quotes"
                )
            if values:
                rows.append(dict(zip(header, values, strict=True)))
                lines.append(line)
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: is no CSV ({error})") from None
    return Records(file, rows, lines)


def _read_parquet(file: Path) -> Records:
    _need_pyarrow(file)
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(file).to_pylist()
    except ArrowException as error:
        raise DataError(f"{file} is no parquet file, or damaged ({error})") from None
    return Records(file, rows, range(1, len(rows) + 1), "row")


def _read_arrow(file: Path) -> Records:
    """A stream, as the library `datasets` writes it, or a file."""
    _need_pyarrow(file)
    from pyarrow import ArrowException, ipc, memory_map

    try:
        with memory_map(str(file)) as source:
            try:
                table = ipc.open_stream(source).read_all()
            except ArrowException:
                source.seek(0)
                table = ipc.open_file(source).read_all()
            rows = table.to_pylist()
    except ArrowException as error:
        raise DataError(f"{file} is no arrow file, or damaged ({error})") from None
    return Records(file, rows, range(1, len(rows) + 1), "row")


_READERS: dict[str, Callable[[Path], Records]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}

SUFFIXES = tuple(_READERS)
"""Ends of the names of files that are read."""


def _need_pyarrow(file: Path) -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise ConfigError(
            f"{file}: reading {file.suffix} files needs pyarrow: pip install 'inlay[tune]'"
        ) from None


def _read_text(file: Path) -> str:
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data.startswith(_OTHER_ENCODINGS):
            raise DataError(f"{file} is UTF-16 or UTF-32: save it as UTF-8") from None
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise DataError(
            f"{file}, line {line}: is not UTF-8 (byte 0x{byte:02x} at {error.start}): save it as "
            "UTF-8"
        ) from None


def _no_json(file: Path, error: Exception, line: int | None = None) -> DataError:
    if not isinstance(error, json.JSONDecodeError):
        where = f"{file}, line {line}" if line else str(file)
        return DataError(f"{where}: is no JSON that can be read ({error})")
    line = error.lineno if line is None else line
    return DataError(f"{file}, line {line}: is no JSON ({error.msg}, column {error.colno})")


def _line_in_list(file: Path, row: int) -> int:
    """The line at which an item of a JSON list begins."""
    text = _read_text(file)
    decoder = json.JSONDecoder()
    at = text.index("[") + 1
    for _ in range(row + 1):
        while text[at] in " \t\r\n,":
            at += 1
        begin = at
        _, at = decoder.raw_decode(text, at)
    return text.count("\n", 0, begin) + 1


def _kind(value: object) -> str:
    """What JSON calls a value."""
    names = {dict: "object", list: "list", str: "text", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
