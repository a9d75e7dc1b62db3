"""`dataset_info.json`: which files a dataset's name stands for, and what their columns mean.

Local files only; hubs are not asked.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.core.errors import ConfigError
from inlay.core.text_files import read_json_object
from inlay.tune.data.files import SUFFIXES

INFO_FILE = "dataset_info.json"

# Columns and tags of each format where dataset_info.json says nothing.
_COLUMNS = {
    "alpaca": {"prompt": "instruction", "query": "input", "response": "output"},
    "sharegpt": {"messages": "conversations"},
    "openai": {"messages": "messages"},
}
_OPTIONAL_COLUMNS = ("system", "tools", "history")
_TAGS = {
    "sharegpt": {
        "role_tag": "from",
        "content_tag": "value",
        "user_tag": "human",
        "assistant_tag": "gpt",
        "observation_tag": "observation",
        "function_tag": "function_call",
        "system_tag": "system",
    },
    "openai": {
        "role_tag": "role",
        "content_tag": "content",
        "user_tag": "user",
        "assistant_tag": "assistant",
        "observation_tag": "tool",
        "function_tag": "function_call",
        "system_tag": "system",
    },
}
_HUBS = ("hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name")
_OTHER_DATA = {
    "ranking": "answers that are compared belong to other stages than sft",
    "images": "data are text",
    "videos": "data are text",
    "audios": "data are text",
    "kto_tag": "answers that are rated belong to other stages than sft",
    "chosen": "answers that are compared belong to other stages than sft",
    "rejected": "answers that are compared belong to other stages than sft",
}
_ENTRY_KEYS = (
    "file_name", "formatting", "columns", "tags", "num_samples", "ranking", "split", "subset",
    "folder", *_HUBS,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a name in dataset_info.json stands for.

    Attributes:
        name: of the dataset.
        files: local files, in order.
        formatting: how a record is a conversation: alpaca, sharegpt or openai.
        columns: column of a record, by what it means.
        named: columns that dataset_info.json names itself.
        tags: names within a message, by what they mean; empty with alpaca.
        num_samples: so many records are drawn; None: all are taken.
    """

    name: str
    files: tuple[Path, ...]
    formatting: str
    columns: Mapping[str, str]
    named: frozenset[str]
    tags: Mapping[str, str]
    num_samples: int | None = None


def find_sources(names: Sequence[str], dataset_dir: Path) -> list[Source]:
    """The sources of datasets, in their order.

    Args:
        names: in dataset_info.json.
        dataset_dir: folder of that file, and of those that it names.

    Raises:
        ConfigError: the file cannot be read, has no such name (with near ones), or an entry is not
            as it must be.
    """
    if not names:
        return []
    info_file = dataset_dir / INFO_FILE
    info = _read_info(info_file)
    return [_source(name, info, info_file) for name in names]


def _read_info(info_file: Path) -> dict[str, Any]:
    try:
        return read_json_object(
            info_file, remedy="write an object with an entry for each dataset", error=ConfigError
        )
    except OSError as error:
        raise ConfigError(
            f"{info_file} cannot be read: {error.strerror}: dataset_dir must be its folder"
        ) from None


def _source(name: str, info: Mapping[str, Any], info_file: Path) -> Source:
    if name not in info:
        near = difflib.get_close_matches(name, info, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else "it has " + ", ".join(info)
        raise ConfigError(f"{info_file} has no dataset {name!r}: {hint}")
    entry, where = info[name], f"{info_file}, {name}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where}: must be an object, such as {{file_name: {name}.json}}")
    _known(entry, _ENTRY_KEYS, where)
    formatting = entry.get("formatting", "alpaca")
    if formatting not in _COLUMNS:
        raise ConfigError(f"{where}: formatting is {formatting}: must be {', '.join(_COLUMNS)}")
    given = entry.get("columns")
    columns = _names(given, where, "columns")
    asked = {**entry, **columns}
    for key, why in _OTHER_DATA.items():
        if asked.get(key):
            raise ConfigError(f"{where}: has {key}: {why}")
    _known(columns, (*_COLUMNS[formatting], *_OPTIONAL_COLUMNS), f"{where}, columns")
    tags = _names(entry.get("tags"), where, "tags")
    _known(tags, tuple(_TAGS.get(formatting, {})), f"{where}, tags")
    num_samples = entry.get("num_samples")
    if num_samples is not None and (type(num_samples) is not int or num_samples < 1):
        raise ConfigError(f"{where}: num_samples is {num_samples!r}: must be at least 1")
    return Source(
        name=name,
        files=_files(entry, info_file.parent, where),
        formatting=formatting,
        # Columns that are named replace the usual ones together, as in LLaMA-Factory.
        columns=columns if given else _COLUMNS[formatting],
        named=frozenset(columns.values()),
        tags={**_TAGS.get(formatting, {}), **tags},
        num_samples=num_samples,
    )


def _files(entry: Mapping[str, Any], folder: Path, where: str) -> tuple[Path, ...]:
    """The file of an entry, or those of its folder that can be read."""
    name = entry.get("file_name")
    if not isinstance(name, str):
        hub = next((key for key in _HUBS if key in entry), None)
        what = f"has {hub} alone" if hub else "has no file_name"
        raise ConfigError(f"{where}: {what}: fetch its files and name them by file_name")
    if entry.get("split", "train") != "train":
        raise ConfigError(f"{where}: split is {entry['split']!r}: a local file has train alone")
    path = folder / name
    if path.is_dir():
        found = tuple(sorted(file for file in path.iterdir() if file.suffix in SUFFIXES))
        if not found:
            raise ConfigError(f"{where}: {path} has no files ending in {', '.join(SUFFIXES)}")
        return found
    if not path.is_file():
        raise ConfigError(f"{where}: there is no file {path}")
    return (path,)


def _names(value: Any, where: str, what: str) -> dict[str, str]:
    """A table of names, those without a value left out."""
    if value is None:
        return {}
    if not isinstance(value, dict) or any(
        name is not None and not isinstance(name, str) for name in value.values()
    ):
        raise ConfigError(f"{where}: {what} must be an object of names")
    return {key: name for key, name in value.items() if name is not None}


def _known(table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    for key in table:
        if key not in known and key not in _OTHER_DATA:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(known)
            raise ConfigError(f"{where}: there is no key {key!r}: {hint}")
