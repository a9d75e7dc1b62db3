"""Records as editors and other programs leave them, and what is said of those that are wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

from inlay.core.errors import ConfigError, DataError
from inlay.core.records import Records, parse_record, read_csv, read_json_lines, read_json_records

BOM = b"\xef\xbb\xbf"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4976698672\n"
ROWS = [{"a": "x", "b": "ü"}, {"a": "y", "b": "\u2028"}]
FORMS = {
    read_json_records: '[{"a": "x", "b": "ü"},\n{"a": "y", "b": "\u2028"}]\n',
    read_json_lines: '{"a": "x", "b": "ü"}\n{"a": "y", "b": "\u2028"}\n',
    read_csv: "a,b\nx,ü\ny,\u2028\n",
}
Read = Callable[..., Records]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", BOM])
@pytest.mark.parametrize("read", FORMS)
def test_marks_and_ends_of_lines(tmp_path: Path, read: Read, mark: bytes, end: str) -> None:
    file = tmp_path / "a"
    file.write_bytes(mark + FORMS[read].replace("\n", end).encode())
    found = read(file)
    assert found.rows == ROWS
    second = {read_json_records: "line 2, record 2", read_json_lines: "line 2", read_csv: "line 3"}
    assert found.place(1) == f"{file}, {second[read]}"


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_json_records, b'[{"a": "\xff"}]', "line 1: is not UTF-8 .byte 0xff at 8.: save it"),
        (read_json_lines, b'{"a": 1}\n{"a": "\xff"}', "line 2: is not UTF-8 .byte 0xff at 16."),
        (read_csv, b"a\nb\nc\xff", "line 3: is not UTF-8 .byte 0xff at 5."),
        (read_csv, "a\nb".encode("utf-16"), "is UTF-16 or UTF-32: save it as UTF-8"),
        *((read, POINTER, "is a pointer of Git LFS.*git lfs pull") for read in FORMS),
        (read_json_records, b'[{"a": 1},\n{]', "line 2: is no JSON .*column 2.: correct it"),
        (read_json_records, b'[{"a": 1}, 7]', "line 1, record 2: is a number: must be an object"),
        (read_json_records, b'{"a": 1}', "holds a single object: must be a list of objects"),
        (read_json_lines, b'{"a": 1}\n\n{"a"', "line 3: is no JSON .*: correct it"),
        (read_json_lines, b'{"a": 1}\n[]', "line 2: is a list: must be an object: correct it"),
        (read_json_lines, b"[" * 100_000, "line 1: is no JSON that can be read .*recursion"),
        (read_csv, b"a,b\r\n1,2\r\n3\r\n", "line 3: has 1 values, the first line names 2 columns"),
        (read_csv, b'a,b\n1,"2\n', "line 2: is no CSV .*: close its quotes"),
        (read_csv, b"a,b,a\n1,2,3\n", "line 1: names the column 'a' twice: rename one"),
    ],
)
def test_what_is_wrong_is_said_with_the_place(
    tmp_path: Path, read: Read, content: bytes, message: str
) -> None:
    file = tmp_path / "rows"
    file.write_bytes(content)
    for error in (DataError, ConfigError):
        with pytest.raises(error, match=f"rows(, | ){message}"):
            read(file, error=error)


def test_objects_a_line_in_a_file_that_is_named_a_list(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"a": 1}\n{"a": 2}\n')
    found = read_json_records(tmp_path / "a.json")
    assert found.rows == [{"a": 1}, {"a": 2}] and found.lines == [1, 2]


def test_a_line_by_itself() -> None:
    assert parse_record('{"a": 1}\r\n') == {"a": 1}
    with pytest.raises(ValueError, match="is a boolean: must be an object"):
        parse_record("true")
