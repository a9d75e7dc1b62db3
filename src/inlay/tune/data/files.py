"""Records of data files, by the ends of their names: json, jsonl, csv, parquet and arrow."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from inlay.core.errors import ConfigError, DataError
from inlay.core.records import Records, read_csv, read_json_lines, read_json_records
from inlay.core.text_files import refuse_lfs_pointer


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


def _read_parquet(file: Path) -> Records:
    _need_pyarrow(file)
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(file).to_pylist()
    except ArrowException as error:
        refuse_lfs_pointer(file, error=DataError)
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
        refuse_lfs_pointer(file, error=DataError)
        raise DataError(f"{file} is no arrow file, or damaged ({error})") from None
    return Records(file, rows, range(1, len(rows) + 1), "row")


_READERS: dict[str, Callable[[Path], Records]] = {
    ".json": partial(read_json_records, error=DataError),
    ".jsonl": partial(read_json_lines, error=DataError),
    ".csv": partial(read_csv, error=DataError),
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
